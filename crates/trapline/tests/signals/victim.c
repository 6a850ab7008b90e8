// Functions with displaced instructions that fault, take long, are in the middle of a window, or are between
// vector instructions.
#define FUNCTION(name, body) \
	asm(".text\n.p2align 6\n.globl " #name "\n.type " #name ",@function\n" #name ":\n" body "\n.size " #name ",.-" #name "\n")

// On the trap path, an instruction that loads is simulated, and one that adds to memory runs in a copy.
FUNCTION(load, "mov (%rdi),%rax\nnop\nnop\nret");
FUNCTION(bump, "addq $5,(%rdi)\nmov (%rdi),%rax\nret");
// The second instruction, which is inside a jump's window, faults.
FUNCTION(later, "mov %rsi,%rax\nadd (%rdi),%rax\nret");
FUNCTION(divide, "mov %rdi,%rax\nxor %edx,%edx\ndiv %rsi\nnop\nnop\nret");
// cpuid takes a microsecond or more in a virtual machine, and a hundred nanoseconds elsewhere.
FUNCTION(slow, "push %rbx\nxor %eax,%eax\nxor %ecx,%ecx\ncpuid\nnop\nnop\nnop\n"
	       "pop %rbx\nxor %eax,%eax\nret");
// A thread may come to the second instruction by a branch that no analysis sees.
FUNCTION(inner, "mov %rdi,%rax\nlea (%rdi,%rsi),%rax\nret");
// Continues with whatever is there.
FUNCTION(trapping, "int3\nmov %rdi,%rax\nret");
// Room for a stack pointer that is moved up, over one word, and back down.
FUNCTION(stacked, "push %rsi\npush %rdi\nnopl 0(%rax,%rax,1)\npop %rax\nret");
// All of a vector register, and a mask, across an instruction with a probe. rdi: in, rsi: out.
FUNCTION(wide, "vmovups (%rdi),%zmm7\nvmovups 64(%rdi),%zmm29\nkmovq 128(%rdi),%k3\n.globl wide_inside\n"
	       "wide_inside: nopl 0(%rax,%rax,1)\nvmovups %zmm7,(%rsi)\nvmovups %zmm29,64(%rsi)\nkmovq %k3,128(%rsi)\n"
	       "vzeroupper\nxor %eax,%eax\nret");
FUNCTION(narrow, "vmovups (%rdi),%ymm7\nvmovups 64(%rdi),%ymm13\n.globl narrow_inside\n"
		 "narrow_inside: nopl 0(%rax,%rax,1)\nvmovups %ymm7,(%rsi)\nvmovups %ymm13,64(%rsi)\n"
		 "vzeroupper\nxor %eax,%eax\nret");
