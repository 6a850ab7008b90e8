import sys, math, struct, array, re, json, collections, itertools, functools, operator, io, os, time, decimal
class A:
    __slots__ = ("x",)
    def __init__(self, x): self.x = x
    def __eq__(self, other): return self.x == other.x
    def __hash__(self): return hash(self.x)
    def __repr__(self): return f"A({self.x!r})"
class B(A):
    @property
    def y(self): return self.x * 2
    @staticmethod
    def s(a, *b, c=1, **d): return a, b, c, d
    def __enter__(self): return self
    def __exit__(self, *e): return True
def gen(n):
    for i in range(n):
        got = yield i
        if got: return got
d = {i: str(i) for i in range(40)}; d.pop(3); d.update(a=1); list(d.items()); d | {1: 2}
s = {1, 2, 3} | {4}; s & {2}; s ^ {1}; frozenset(s); s.discard(1)
l = sorted([3, 1, 2] * 5, key=lambda v: -v); l.insert(2, 9); l[1:3] = [7]; l.reverse(); l * 2; l.index(7); del l[0]
t = tuple(l) + (1,); t[1:]; t.count(1)
"abc".upper().center(20).split(); "a,b".partition(","); "%s %d %5.2f" % ("x", 3, 2.5); f"{3.5:>10.3e} {255:#x}"
"ü".encode().decode(); b"ab".hex(); bytearray(b"xy").extend(b"z"); "abc".translate({97: "x"}); "x".join(map(str, l))
2**200 // 3**50 % 7**20; pow(3, 100, 7); -5 >> 1; 10**30; int("123456789012345678901234567890"); hex(255); divmod(-7, 3)
1.5 + 2j; abs(3 + 4j); math.sin(1.0); round(2.675, 2); float("1e10").hex(); (0.1).as_integer_ratio()
struct.pack("<ihq", 1, 2, 3); array.array("d", [1, 2]); re.sub(r"(\w)(\d+)", r"\2\1", "a12 b34")
json.loads(json.dumps({"a": [1, 2.5, None, True]})); collections.Counter("hello"); collections.deque(range(5)).rotate(2)
list(itertools.chain(range(3), itertools.permutations("ab"))); functools.reduce(operator.add, range(10))
g = gen(3); next(g); g.send(None); list(g)
try: 1 / 0
except ZeroDivisionError as e: str(e); e.__traceback__
try: [][1]
except (IndexError, KeyError): pass
with B(3): raise ValueError("x")
B.s(1, 2, c=3, z=4); B(2).y; repr(B(1)) == str(B(1)); hash(B(1)); isinstance(B(1), A); getattr(B(1), "nope", None)
exec(compile("x = [i for i in range(3) if i]\nclass C: pass\n", "f", "exec")); eval("1 if x else 2"); type("D", (A,), {})
m = memoryview(b"abcdef")[1:4]; bytes(m); m.tolist(); zip([1], [2]); any([0, 1]); max(3, 4); sum([1, 2]); enumerate("ab")
io.StringIO("a\nb").readlines(); os.getcwd(); os.environ.get("X"); time.time(); sys.getsizeof(1); print("done")
import threading; th = threading.Thread(target=gen, args=(1,)); th.start(); th.join()
import asyncio
async def co(): await asyncio.sleep(0); return 1
asyncio.run(co()); decimal.Decimal("1.1") + 1; slice(1, 2).indices(5); lambda: (yield); [*range(3), *"ab"]; {**{"a": 1}}
match (1, {"k": 2}):
    case (1, {"k": v}): pass
