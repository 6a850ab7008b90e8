// Functions to be probed, of shapes that matter. Built as a library, loaded by dlopen.
#include <stdint.h>

#define VISIBLE __attribute__((noinline, visibility("default")))

VISIBLE uint64_t add(uint64_t a, uint64_t b) { return a * 3 + b; }

VISIBLE uint64_t twice(uint64_t a)
{
	if (a > 100)
		return add(a, a) + 1;
	return a * 2;
}

// A leaf with its data in the red zone.
VISIBLE uint64_t red(volatile uint64_t *out, uint64_t a)
{
	uint64_t sum;
	asm volatile("mov %1, -8(%%rsp)\n\tnot %1\n\tmov %1, -128(%%rsp)\n\t"
		     ".globl red_inside\n\tred_inside: lea 1(%1), %1\n\tnop\n\tnop\n\tnop\n\tnop\n\t"
		     "mov -8(%%rsp), %0\n\tadd -128(%%rsp), %0"
		     : "=&r"(sum), "+r"(a));
	*out = sum;
	return sum + 1;
}

VISIBLE double scale(double x, double y) { return x * y + 0.5; }

VISIBLE uint64_t fib(uint64_t n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

// Too short for a jump: one byte, and no padding behind it.
asm(".text\n.globl tiny\n.type tiny,@function\ntiny: ret\n.size tiny,.-tiny\n"
    ".globl after\n.type after,@function\nafter: lea (%rdi,%rdi,4),%rax\nret\n.size after,.-after\n");

// A tail call.
VISIBLE uint64_t tail(uint64_t a) { return add(a + 1, 7); }
