// Functions to be probed, of shapes that matter on arm64. Built as a library, loaded by dlopen.
#include <execinfo.h>
#include <setjmp.h>
#include <stdint.h>

#define VISIBLE __attribute__((noinline, visibility("default")))
#define FUNCTION(name, body) \
	ALIGNED(16, name, body)
#define ALIGNED(to, name, body) \
	asm(".text\n.balign " #to "\n.globl " #name "\n.type " #name ",%function\n" #name ":\n" body "\n.size " #name ",.-" #name "\n")

VISIBLE uint64_t add(uint64_t a, uint64_t b) { return a * 3 + b; }

// Two returns.
VISIBLE uint64_t twice(uint64_t a)
{
	if (a > 100)
		return add(a, a) + 1;
	return a * 2;
}

VISIBLE double scale(double x, double y) { return x * y + 0.5; }

VISIBLE uint64_t fib(uint64_t n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

// First words of each way of doing them: simulated, and copied.
FUNCTION(pushes, "stp x29, x30, [sp, #-16]!\n mov x29, sp\n add x0, x0, x1\n ldp x29, x30, [sp], #16\n ret");
FUNCTION(signs, "hint #25\n stp x29, x30, [sp, #-16]!\n add x0, x0, x1\n ldp x29, x30, [sp], #16\n hint #29\n ret");
FUNCTION(lands, "hint #34\n add x0, x0, x1\n ret");
FUNCTION(moves, "mul x0, x0, x1\n ret");
FUNCTION(loads, "ldr d0, 1f\n fmov x2, d0\n add x0, x0, x1\n add x0, x0, x2\n ret\n .balign 8\n1: .quad 100");
FUNCTION(pages, "adrp x2, pages\n and x2, x2, #0xfff\n add x0, x0, x1\n add x0, x0, x2\n ret");

// Nothing but its return.
FUNCTION(empty, "ret");

// Functions that take no probe, or no return probe.
FUNCTION(stops, "brk #7\n ret");
FUNCTION(calls_kernel, "mov x8, #172\n svc #0\n ret");
FUNCTION(exclusive, "1: ldxr x2, [x0]\n add x2, x2, #1\n stxr w3, x2, [x0]\n cbnz w3, 1b\n mov x0, x2\n ret");
FUNCTION(jumps, "adr x2, 1f\n br x2\n1: ret");
// A return that nothing reaches: data.
FUNCTION(holds_data, "b 1f\n .word 0xd65f03c0\n1: ldr w0, .-4\n ret");
FUNCTION(tail, "add x0, x0, #1\n mov x1, #7\n b add");

// Jumps to each other, as often as x0 states.
FUNCTION(even, "cbz x0, 1f\n sub x0, x0, #1\n b odd\n1: mov x0, #5\n ret");
FUNCTION(odd, "cbz x0, 1f\n sub x0, x0, #1\n b even\n1: mov x0, #6\n ret");

// Calls itself.
VISIBLE uint64_t deep(uint64_t n)
{
	uint64_t value = n ? deep(n - 1) : 2;
	asm volatile("" : "+r"(value));
	return value * 2 + 1;
}

// Left by longjmp.
VISIBLE void leaves(jmp_buf *to, uint64_t n)
{
	if (n % 2)
		longjmp(*to, 1);
	asm volatile("");
}
VISIBLE uint64_t catches(uint64_t n)
{
	jmp_buf here;
	if (setjmp(here))
		return 1000;
	leaves(&here, n);
	return n;
}

// Calls a function of its caller's, with signed return addresses, and with cleanup when an exception leaves it.
#define SIGNED __attribute__((target("branch-protection=pac-ret+leaf")))
static void once_more(uint64_t **count) { ++**count; }
VISIBLE SIGNED uint64_t cleans(uint64_t (*f)(uint64_t), uint64_t *count)
{
	__attribute__((cleanup(once_more))) uint64_t *counted = count;
	return f(*count) + 1;
}
VISIBLE SIGNED uint64_t signs_leaf(uint64_t a) { return a * 7; }
VISIBLE SIGNED uint64_t walks(void **frames, uint64_t most)
{
	uint64_t n = backtrace(frames, most);
	asm volatile("" : "+r"(n));
	return n;
}
VISIBLE uint64_t walker(void **frames, uint64_t most)
{
	uint64_t n = walks(frames, most);
	asm volatile("" : "+r"(n));
	return n;
}

// Called by the library's constructor, before dlopen returns.
VISIBLE uint64_t born(uint64_t a) { return a * 5 + 1; }
static volatile uint64_t births;
__attribute__((constructor)) static void construct(void) { births = born(1); }

// USDT semaphores, in writable data of the file.
VISIBLE volatile uint16_t semaphore[4] __attribute__((section(".probes"))) = {0};

// Calls a function of its caller's during a call.
VISIBLE uint64_t with(uint64_t (*f)(uint64_t), uint64_t x) { return f(x) + 1; }

// On pages of their own.
ALIGNED(4096, far_a, "nop\n add x0, x0, x1\n ret");
ALIGNED(4096, far_b, "nop\n sub x0, x0, x1\n ret");
asm(".balign 4096\n nop\n");

// Loads all registers from x0, runs some words, stores all to x1: 32 vectors; flags and FPSR; x2 to x30 and x1; after
// that x0 as it was then.
#define CALLEE_SAVED \
	"stp x29, x30, [sp, #-128]!\n stp x19, x20, [sp, #16]\n stp x21, x22, [sp, #32]\n stp x23, x24, [sp, #48]\n" \
	"stp x25, x26, [sp, #64]\n stp x27, x28, [sp, #80]\n stp x1, x18, [sp, #96]\n" \
	"stp d8, d9, [sp, #-64]!\n stp d10, d11, [sp, #16]\n stp d12, d13, [sp, #32]\n stp d14, d15, [sp, #48]\n"
#define CALLEE_RESTORED \
	"ldp d14, d15, [sp, #48]\n ldp d12, d13, [sp, #32]\n ldp d10, d11, [sp, #16]\n ldp d8, d9, [sp], #64\n" \
	"ldp x27, x28, [sp, #80]\n ldp x25, x26, [sp, #64]\n ldp x23, x24, [sp, #48]\n ldp x21, x22, [sp, #32]\n" \
	"ldp x19, x20, [sp, #16]\n ldr x18, [sp, #104]\n ldp x29, x30, [sp], #128\n ret"
#define VECTORS(op) \
	op " {v0.16b-v3.16b}, [x0], #64\n" op " {v4.16b-v7.16b}, [x0], #64\n" op " {v8.16b-v11.16b}, [x0], #64\n" \
	op " {v12.16b-v15.16b}, [x0], #64\n" op " {v16.16b-v19.16b}, [x0], #64\n" op " {v20.16b-v23.16b}, [x0], #64\n" \
	op " {v24.16b-v27.16b}, [x0], #64\n" op " {v28.16b-v31.16b}, [x0], #64\n"
#define GENERAL(op) \
	"" op " x2, x3, [x0, #16]\n" op " x4, x5, [x0, #32]\n" op " x6, x7, [x0, #48]\n" \
	"" op " x8, x9, [x0, #64]\n" op " x10, x11, [x0, #80]\n" op " x12, x13, [x0, #96]\n" \
	"" op " x14, x15, [x0, #112]\n" op " x16, x17, [x0, #128]\n" op " x18, x19, [x0, #144]\n" \
	"" op " x20, x21, [x0, #160]\n" op " x22, x23, [x0, #176]\n" op " x24, x25, [x0, #192]\n" \
	"" op " x26, x27, [x0, #208]\n" op " x28, x29, [x0, #224]\n"
#define AROUND(name, words) \
	FUNCTION(name, CALLEE_SAVED VECTORS("ld1") \
		"ldp x2, x3, [x0]\n msr nzcv, x2\n msr fpsr, x3\n" GENERAL("ldp") "ldr x30, [x0, #240]\n ldr x1, [x0, #248]\n" \
		".globl " #name "_at\n" #name "_at:\n" words "\n" \
		"stp x0, x1, [sp, #-16]!\n ldr x0, [sp, #176]\n" VECTORS("st1") \
		GENERAL("stp") "str x30, [x0, #240]\n mrs x2, nzcv\n mrs x3, fpsr\n stp x2, x3, [x0]\n" \
		"ldp x2, x3, [sp], #16\n stp x3, x2, [x0, #248]\n" CALLEE_RESTORED)

// Simulated, copied, pushed with the stack below it in use, and popped again.
AROUND(around, "nop\n orr x0, x0, x0\n stp x29, x30, [sp, #-512]!\n add sp, sp, #512");
FUNCTION(target, "ret");
FUNCTION(elsewhere, "ret");
AROUND(around_call, "bl target");

// The same for registers of a length that depends on the processor: 32 Z, 16 P, FFR.
#define SCALABLE(op, at, predicates) \
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n" op " z\\n, [" at ", #\\n, mul vl]\n.endr\n" \
	".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n" op " p\\n, [" predicates ", #\\n, mul vl]\n.endr\n"
FUNCTION(around_sve, ".arch_extension sve\n" CALLEE_SAVED
	"addvl x2, x0, #16\n addvl x2, x2, #16\n addvl x3, x1, #16\n addvl x3, x3, #16\n"
	"ldr p0, [x2, #16, mul vl]\n wrffr p0.b\n" SCALABLE("ldr", "x0", "x2")
	".globl around_sve_at\naround_sve_at: nop\n orr x0, x0, x0\n"
	SCALABLE("str", "x1", "x3") "rdffr p0.b\n str p0, [x3, #16, mul vl]\n"
	CALLEE_RESTORED "\n.arch_extension nosve");

// Distance of its stack pointer from its caller's, which has room above and below.
FUNCTION(stack, "mov x0, sp\n ret");
FUNCTION(other_stack, "mov x0, sp\n add x0, x0, #1\n ret");
FUNCTION(on_stack, "stp x29, x30, [sp, #-32]!\n str x19, [sp, #16]\n mov x19, sp\n sub sp, sp, #16384\n mov x1, sp\n"
	"bl stack\n sub x0, x0, x1\n mov sp, x19\n ldr x19, [sp, #16]\n ldp x29, x30, [sp], #32\n ret");

// A word that faults, if its caller chooses so.
FUNCTION(fetches, "ldr x0, [x0, #8]\n ret");

// A loop: some way into a function, with x16 and x17 in use.
FUNCTION(loops, "mov x16, #3\n mov x17, #5\n1: add x0, x0, x16\n add x0, x0, x17\n subs x1, x1, #1\n b.ne 1b\n ret");

// Its argument is needed in a register that a hit may overwrite.
FUNCTION(scale_and_add, "add x2, x0, x0\n add x0, x2, x1\n ret");

// A page that a test guards: an indirect branch to it must land on a landing pad.
asm(".balign 4096\n");
FUNCTION(pads, "hint #34\n stp x29, x30, [sp, #-16]!\n add x0, x0, x1\n ldp x29, x30, [sp], #16\n ret");
FUNCTION(pads_signed, "hint #25\n stp x29, x30, [sp, #-16]!\n add x0, x0, x1\n ldp x29, x30, [sp], #16\n hint #29\n ret");
asm(".balign 4096\n nop\n");
