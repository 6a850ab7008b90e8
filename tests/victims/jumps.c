/* Ways of leaving a function that are not `ret`: longjmp out of probed frames, coroutines by swapcontext that switch
 * inside probed functions, signal handlers on an alternate stack that call probed functions and longjmp away. */
#include "victim.h"
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

static jmp_buf back;
static sigjmp_buf signal_back;
static ucontext_t main_context, coroutine;
static u64 yielded, sum, handled;
static char alternate[65536], stack[65536];

PROBED void leaver(u64 n) {
    if (n == 0) longjmp(back, 1);
    if (n < 100) leaver(n - 1);
    __asm__ volatile("");
}
PROBED u64 stayer(u64 n) {
    if (setjmp(back) == 0) leaver(n);
    return n + 1;
}
PROBED void yielder(u64 n) {
    yielded += n;
    swapcontext(&coroutine, &main_context);
    yielded += 1;
}
PROBED u64 resumer(u64 n) {
    swapcontext(&main_context, &coroutine);
    return n;
}
static void body(void) {
    for (u64 i = 0;; i++) yielder(i % 5);
}
PROBED void in_handler(int away) {
    handled++;
    if (away) siglongjmp(signal_back, 1);
}
static void on_usr1(int sig) { in_handler(sig == SIGUSR2); }
PROBED u64 signalled(u64 n) {
    if (sigsetjmp(signal_back, 1) == 0) raise(n % 2 ? SIGUSR2 : SIGUSR1);
    return n;
}
static void run(u64 times) {
    u64 leavers = 0;
    sum = yielded = handled = 0;
    for (u64 i = 0; i < times; i++) {
        sum += stayer(i % 7), leavers += i % 7 + 1;
        sum += resumer(i);
        sum += signalled(i);
    }
    TELL("leaver", leavers);
    TELL("stayer", times);
    TELL("yielder", times);
    TELL("resumer", times);
    TELL("in_handler", handled);
    TELL("signalled", times);
    TELL("check", sum + yielded);
    /* The coroutine is inside a call of yielder; start over, so that the next run is the same. */
    makecontext(&coroutine, body, 0);
}
int main(void) {
    stack_t alt = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction act = {.sa_handler = on_usr1, .sa_flags = SA_ONSTACK};
    sigaltstack(&alt, NULL);
    sigaction(SIGUSR1, &act, NULL);
    sigaction(SIGUSR2, &act, NULL);
    getcontext(&coroutine);
    coroutine.uc_stack.ss_sp = stack;
    coroutine.uc_stack.ss_size = sizeof stack;
    makecontext(&coroutine, body, 0);
    return victim_serve(run);
}
