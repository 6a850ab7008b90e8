/* `family HOW`: with `fork`, run N forks N children that call `child_work` ten times each; with `exec`
 * each child executes this program again with `once`; with `vfork`, through vfork.
 * With `dlopen`, each run loads the plugin beside this program, calls `plugin_work` ten times at once and
 * ten times more when a probe stands there, and unloads it; with `reload` the plugin is loaded, called ten
 * times and unloaded at once. With `covered` this program's own first page is then mapped where its code was.
 * With `inside`, run N forks N children that stay in `child_inside` until this program ends.
 * `family orphans HOW` leaves a child, and a grandchild in a session of its own. Each calls `child_work`
 * ten times, one second after its parents are gone. The program ends, or with `exec` it executes another one. */
#include "victim.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *how, *self;

PROBED u64 child_work(u64 x) { return x * 11 + 4; }
PROBED u64 parent_work(u64 x) { return x * 13 + 5; }

#ifdef __x86_64__
/* Four bytes each, one behind the other. If all are probed, a jump does not fit all of them. The code
 * around decides which ones get none. */
u64 tight_one(u64 x), tight_two(u64 x), tight_three(u64 x);
__asm__(".text\n.globl tight_one, tight_two, tight_three\n.type tight_one, @function\n"
        ".type tight_two, @function\n.type tight_three, @function\n"
        "tight_one: lea 1(%rdi), %eax\n ret\n.size tight_one, . - tight_one\n"
        "tight_two: lea 2(%rdi), %eax\n ret\n.size tight_two, . - tight_two\n"
        "tight_three: lea 3(%rdi), %eax\n ret\n.size tight_three, . - tight_three\n");
#else
PROBED u64 tight_one(u64 x) { return x + 1; }
PROBED u64 tight_two(u64 x) { return x + 2; }
PROBED u64 tight_three(u64 x) { return x + 3; }
#endif

static u64 ten(void) {
    u64 sum = 0;
    for (u64 i = 0; i < 10; i++) {
        sum += child_work(i);
        if (tight_one(i) + tight_two(i) + tight_three(i) != 3 * i + 6) sum++;
    }
    return sum;
}
static int one_child(void) {
    int status = 0;
    pid_t pid = !strcmp(how, "vfork") ? vfork() : fork();
    if (pid == 0) {
        if (strcmp(how, "fork")) {
            execl(self, self, "once", (char *)NULL);
            _exit(9);
        }
        _exit(ten() == 535 ? 0 : 1);
    }
    waitpid(pid, &status, 0);
    return status;
}
static int there[2], release[2];

PROBED u64 child_inside(u64 x) {
    char c = 1;
    if (write(there[1], &c, 1) != 1) return 0;
    return x + (u64)read(release[0], &c, 1);
}
static int child_that_stays(void) {
    char c;
    if (!release[1] && (pipe(there) || pipe(release))) return 1;
    pid_t pid = fork();
    if (pid == 0) {
        close(release[1]);
        _exit((int)child_inside(0));
    }
    return pid < 0 || read(there[0], &c, 1) != 1;
}
typedef u64 (*worker)(u64);
/* The first bytes of `plugin_work` in the file, noted before tracing begins. */
static u64 unpatched;

static worker load_plugin(void **handle) {
    char path[4096];
    snprintf(path, sizeof path, "%s", self);
    strcat(dirname(path), "/plugin.so");
    *handle = dlopen(path, RTLD_NOW);
    return *handle ? (worker)dlsym(*handle, "plugin_work") : NULL;
}
static u64 begins(worker work) {
    u64 word;
    __asm__ volatile("movq (%1), %0" : "=r"(word) : "r"(work) : "memory");
    return word;
}
/* Whether a jump stands there; a guard trap alone lets calls through uncounted. */
static int is_probed(worker work) {
    u64 now = begins(work);
    int jumps = 0;
    for (int at = 0; at < 8; at++) jumps |= (now >> 8 * at & 0xff) == 0xe9;
    return now != unpatched && jumps;
}
static int note_plugin(void) {
    void *handle;
    worker work = load_plugin(&handle);
    if (!work) return 1;
    unpatched = begins(work);
    return dlclose(handle);
}
static u64 plugin(void) {
    void *handle;
    worker work = load_plugin(&handle);
    u64 sum = 0;
    if (!work) return 0;
    for (u64 i = 0; i < 10; i++) sum += work(i);
    for (int ms = 0; ms < 120000 && !is_probed(work); ms++) usleep(1000);
    for (u64 i = 0; i < 10; i++) sum += work(i);
    dlclose(handle);
    return sum;
}
static u64 reload(void) {
    void *handle;
    worker work = load_plugin(&handle);
    u64 sum = 0;
    if (!work) return 0;
    worker tiny = (worker)dlsym(handle, "plugin_short");
    for (u64 i = 0; i < 10; i++) sum += work(i);
    for (u64 i = 0; i < 10; i++) sum -= tiny(i) - i - 1;
    dlclose(handle);
    if (!strcmp(how, "covered")) {
        void *place = (void *)((u64)work & ~0xfffUL);
        int file = open(self, O_RDONLY);
        void *there = mmap(place, 0x1000, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, 0);
        if (there != place) return 0;
        close(file);
    }
    return sum;
}
static void run(u64 times) {
    u64 failed = 0, check = 0;
    for (u64 i = 0; i < times; i++) {
        check += parent_work(i);
        if (!strcmp(how, "dlopen")) failed += plugin() != 2 * 1085;
        else if (!strcmp(how, "reload") || !strcmp(how, "covered")) failed += reload() != 1085;
        else if (!strcmp(how, "inside")) failed += child_that_stays() != 0;
        else failed += one_child() != 0;
    }
    TELL("child_work", strcmp(how, "dlopen") && strcmp(how, "reload") && strcmp(how, "inside") ? times * 10 : 0);
    TELL("plugin_work", strcmp(how, "dlopen") ? 0 : times * 20);
    TELL("parent_work", times);
    TELL("failed", failed);
    TELL("check", check);
}
static void later(pid_t parent) {
    while (getppid() == parent) usleep(1000);
    sleep(1);
    _exit(ten() == 535 ? 0 : 1);
}
static int orphans(int execs) {
    pid_t parent = getpid();
    if (fork() == 0) later(parent);
    if (fork() == 0) {
        parent = getpid();
        setsid();
        if (fork() == 0) later(parent);
        _exit(0);
    }
    if (execs) execl("/bin/true", "true", (char *)NULL);
    return execs;
}
int main(int argc, char **argv) {
    static char path[4096];
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 3;
    self = path;
    how = argc > 1 ? argv[1] : "fork";
    if (!strcmp(how, "dlopen") && note_plugin()) return 4;
    if (!strcmp(how, "once")) return ten() == 535 ? 0 : 1;
    if (!strcmp(how, "orphans")) return orphans(argc > 2);
    return victim_serve(run);
}
