/* `callers LIBRARY`: calls of `probed` from code that comes and goes. The first run loads the library, and
 * generates code twice: in private memory, and in a file in memory (as runtimes do that never have
 * writable code). It names both in /tmp/perf-PID.map, and calls through all three. The second run removes
 * all of that and calls directly. */
#include "victim.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

typedef u64 (*Caller)(u64 (*f)(u64), u64 x);

static u64 calls;

PROBED u64 probed(u64 x) {
    calls++;
    return x * 3 + 1;
}

/* push %rbp; mov %rsp,%rbp; mov %rdi,%rax; mov %rsi,%rdi; call *%rax; pop %rbp; ret */
static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89, 0xf8, 0x48, 0x89, 0xf7, 0xff, 0xd0, 0x5d, 0xc3};

static const char *library;
static void *handle;
static char *in_memory, *in_file;

static int come(void) {
    char name[64];
    int fd = memfd_create("code", 0);
    if (fd < 0 || write(fd, code, sizeof code) != sizeof code) return 0;
    in_file = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
    close(fd);
    in_memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (in_file == MAP_FAILED || in_memory == MAP_FAILED) return 0;
    memcpy(in_memory, code, sizeof code);
    if (mprotect(in_memory, 4096, PROT_READ | PROT_EXEC)) return 0;
    snprintf(name, sizeof name, "/tmp/perf-%d.map", getpid());
    FILE *map = fopen(name, "w");
    if (!map) return 0;
    fprintf(map, "%lx %zx made in memory\n%lx %zx made in a file\n", (u64)in_memory, sizeof code, (u64)in_file, sizeof code);
    fclose(map);
    handle = dlopen(library, RTLD_NOW);
    return handle != NULL;
}
static int go(void) {
    int failed = munmap(in_memory, 4096) | munmap(in_file, 4096) | dlclose(handle);
    handle = NULL;
    return !failed;
}
static void run(u64 times) {
    u64 check = 0;
    calls = 0;
    int done = handle ? go() : come();
    Caller from_library = done && handle ? (Caller)dlsym(handle, "from_library") : NULL;
    for (u64 i = 0; done && i < times; i++) {
        if (handle) check += from_library(probed, i) + ((Caller)in_memory)(probed, i) + ((Caller)in_file)(probed, i);
        else check += probed(i);
    }
    TELL("probed", calls);
    TELL("check", check);
    TELL("done", done);
}
int main(int argc, char **argv) {
    if (argc < 2) return 1;
    library = argv[1];
    return victim_serve(run);
}
