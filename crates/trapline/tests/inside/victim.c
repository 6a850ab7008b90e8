// Functions to be probed, of various shapes. Built as a library, loaded by dlopen.
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

// One long instruction: no thread can stand inside a jump over its beginning.
asm(".text\n.p2align 4\n.globl whole\n.type whole,@function\nwhole: movabs $5,%rax\nadd %rdi,%rax\nret\n.size whole,.-whole\n");

// A tail call.
VISIBLE uint64_t tail(uint64_t a) { return add(a + 1, 7); }

// Tail calls of one function through another.
VISIBLE uint64_t odd(uint64_t n);
VISIBLE uint64_t even(uint64_t n) { return n ? odd(n - 1) : 5; }
VISIBLE uint64_t odd(uint64_t n) { return n ? even(n - 1) : 6; }

// Called by the library's constructor, before dlopen returns.
VISIBLE uint64_t born(uint64_t a) { return a * 5 + 1; }
static volatile uint64_t births;
__attribute__((constructor)) static void construct(void) { births = born(1); }

// USDT semaphores, in writable data of the file.
VISIBLE volatile uint16_t semaphore[4] __attribute__((section(".probes"))) = {0};

// A breakpoint of the library's own.
asm(".text\n.globl stops\n.type stops,@function\nstops: int3\nret\n.size stops,.-stops\n");
// Calls a function that its caller passes, in the middle of a call.
VISIBLE uint64_t with(uint64_t (*f)(uint64_t), uint64_t x) { return f(x) + 1; }

VISIBLE uint64_t deep(uint64_t n)
{
	uint64_t half = n ? deep(n - 1) : 2;
	asm volatile("" : "+r"(half)); // no loop
	return half * 2 + 1;
}

#include <sys/wait.h>
#include <unistd.h>

// A child in our own memory, on our own stack, that calls and ends.
uint64_t vforks(uint64_t (*f)(uint64_t), uint64_t x)
{
	int status = -1, child = vfork();
	if (child == 0) {
		f(x);
		_exit(7);
	}
	waitpid(child, &status, 0);
	return WEXITSTATUS(status);
}

// Calls back in the middle of a call.
VISIBLE uint64_t during(uint64_t hook, uint64_t data)
{
	((void (*)(uint64_t))hook)(data);
	asm volatile("" ::: "memory");
	return data + 1;
}

// Changes nothing.
asm(".text\n.globl quiet\n.type quiet,@function\nquiet: .byte 0x0f,0x1f,0x44,0,0\nret\n.size quiet,.-quiet\n");

// with_registers(function, in, out): calls the function with rax rcx rdx rbx rbp rsi rdi r8 to r15 from
// in[15], and stores in out[15] what it left.
asm(".text\n.globl with_registers\n.type with_registers,@function\nwith_registers:\n"
    "push %rbx\npush %rbp\npush %r12\npush %r13\npush %r14\npush %r15\npush %rdx\npush %rsi\npush %rdi\n"
    "mov (%rsi),%rax\nmov 8(%rsi),%rcx\nmov 16(%rsi),%rdx\nmov 24(%rsi),%rbx\nmov 32(%rsi),%rbp\n"
    "mov 48(%rsi),%rdi\nmov 56(%rsi),%r8\nmov 64(%rsi),%r9\nmov 72(%rsi),%r10\nmov 80(%rsi),%r11\n"
    "mov 88(%rsi),%r12\nmov 96(%rsi),%r13\nmov 104(%rsi),%r14\nmov 112(%rsi),%r15\nmov 40(%rsi),%rsi\n"
    "call *(%rsp)\n"
    "push %rax\nmov 24(%rsp),%rax\n"
    "mov %rcx,8(%rax)\nmov %rdx,16(%rax)\nmov %rbx,24(%rax)\nmov %rbp,32(%rax)\nmov %rsi,40(%rax)\n"
    "mov %rdi,48(%rax)\nmov %r8,56(%rax)\nmov %r9,64(%rax)\nmov %r10,72(%rax)\nmov %r11,80(%rax)\n"
    "mov %r12,88(%rax)\nmov %r13,96(%rax)\nmov %r14,104(%rax)\nmov %r15,112(%rax)\npop (%rax)\n"
    "add $24,%rsp\npop %r15\npop %r14\npop %r13\npop %r12\npop %rbp\npop %rbx\nret\n"
    ".size with_registers,.-with_registers\n");

// One name, two versions (see victim.map).
VISIBLE uint64_t first_version(uint64_t a) { return a + 1; }
VISIBLE uint64_t second_version(uint64_t a) { return a + 2; }
asm(".symver first_version,versioned@OLD\n.symver second_version,versioned@@NEW\n");
