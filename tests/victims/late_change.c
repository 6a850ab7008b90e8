/* Loads a library, or another C library, and forbids itself to read the time-stamp counter. For each line: `load`
 * loads plugin.so from the program's folder; `tsc` calls prctl; `other` loads a second C library in a namespace
 * of its own; `other-tsc` calls that one's prctl; each prints `done`. `run N` calls plugin_work N times. */
#include "victim.h"
#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <sys/prctl.h>

typedef unsigned long work_fn(unsigned long);
typedef int prctl_fn(int, ...);

int main(int argc, char **argv) {
    char line[64], path[PATH_MAX + 16];
    work_fn *work = NULL;
    prctl_fn *other = NULL;
    (void)argc;
    setvbuf(stdout, NULL, _IOLBF, 0);
    snprintf(path, sizeof path, "%s/plugin.so", dirname(strdup(argv[0])));
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strcmp(line, "quit")) break;
        if (!strncmp(line, "run ", 4)) {
            u64 sum = 0, times = strtoul(line + 4, NULL, 10);
            for (u64 n = 0; work && n < times; n++) sum += work(n);
            TELL("plugin_work", times);
            TELL("sum", sum);
            putchar('\n');
            continue;
        }
        if (!strcmp(line, "load")) {
            void *plugin = dlopen(path, RTLD_NOW);
            if (!plugin || !(work = (work_fn *)dlsym(plugin, "plugin_work"))) return 3;
        }
        if (!strcmp(line, "other")) {
            void *libc = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
            if (!libc || !(other = (prctl_fn *)dlsym(libc, "prctl"))) return 4;
        }
        if (!strcmp(line, "tsc") && prctl(PR_SET_TSC, PR_TSC_SIGSEGV)) return 5;
        if (!strcmp(line, "other-tsc") && (!other || other(PR_SET_TSC, PR_TSC_SIGSEGV))) return 6;
        puts("done");
    }
    return 0;
}
