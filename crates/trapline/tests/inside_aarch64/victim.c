// Functions to be probed, of shapes that matter on arm64. Built as a library, loaded by dlopen.
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

// What takes no probe, or no return probe.
FUNCTION(stops, "brk #7\n ret");
FUNCTION(calls_kernel, "mov x8, #172\n svc #0\n ret");
FUNCTION(exclusive, "1: ldxr x2, [x0]\n add x2, x2, #1\n stxr w3, x2, [x0]\n cbnz w3, 1b\n mov x0, x2\n ret");
FUNCTION(jumps, "adr x2, 1f\n br x2\n1: ret");
// A return that nothing reaches: data.
FUNCTION(holds_data, "b 1f\n .word 0xd65f03c0\n1: ldr w0, .-4\n ret");
FUNCTION(tail, "add x0, x0, #1\n mov x1, #7\n b add");

// Called by the library's constructor, before dlopen returns.
VISIBLE uint64_t born(uint64_t a) { return a * 5 + 1; }
static volatile uint64_t births;
__attribute__((constructor)) static void construct(void) { births = born(1); }

// USDT semaphores, in writable data of the file.
VISIBLE volatile uint16_t semaphore[4] __attribute__((section(".probes"))) = {0};

// Whatever its caller wants to happen during a call.
VISIBLE uint64_t with(uint64_t (*f)(uint64_t), uint64_t x) { return f(x) + 1; }

// On pages of their own.
ALIGNED(4096, far_a, "nop\n add x0, x0, x1\n ret");
ALIGNED(4096, far_b, "nop\n sub x0, x0, x1\n ret");
asm(".balign 4096\n nop\n");
