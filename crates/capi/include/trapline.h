/* The C interface of Trapline: count and time the functions of running programs, and probe your own.
 *
 * Made from crates/capi/src by cbindgen; a test compares. MIT OR Apache-2.0.
 *
 * Every function that can fail returns a trapline_error; trapline_last_error() says the rest in words, with the numbers.
 * Structures that are handed in or filled begin with their own size, which the caller sets to sizeof: they may grow at the end.
 * What a caller leaves zero means what it meant before the field existed; bytes that this library does not know must be zero.
 * Handles are valid until the function that ends them. Nothing here is locked against use of one handle by two threads at once,
 * but registrations.
 */

#ifndef TRAPLINE_H
#define TRAPLINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// The handlers may change rip.
#define TRAPLINE_PROBE_MOVES_IP 1

// The handlers may change rsp.
#define TRAPLINE_PROBE_MOVES_SP 2

// The handlers, and all that they call, use only general registers (compiled with -mgeneral-regs-only).
// Vector registers are not saved around them, which makes a hit some ten times as fast.
#define TRAPLINE_PROBE_GENERAL_REGS_ONLY 4

// Use a trap even if a jump might fit.
#define TRAPLINE_PROBE_BY_TRAP 8

// Returns are seen at the function's return instructions. A function is refused if it ends in a jump to
// another, or if its exits cannot all be found or patched.
#define TRAPLINE_RETURNS_EXITS 0

// As TRAPLINE_RETURNS_EXITS if that is possible, else as TRAPLINE_RETURNS_STACK.
#define TRAPLINE_RETURNS_AUTO 1

// The return address of each call is replaced by a return trampoline, which unwinders can walk through. All
// return handlers at one site have the same form.
#define TRAPLINE_RETURNS_STACK 2

// Follow fork and exec.
#define TRAPLINE_OPTION_FOLLOW 1

// Stop all threads while code changes.
#define TRAPLINE_OPTION_STRICT 2

// The processes' SIGSEGV and SIGBUS handlers look no address up, so instructions that may fault can be
// moved.
#define TRAPLINE_OPTION_FAULTS_ARE_FATAL 4

// Of recursive calls, time only the outermost.
#define TRAPLINE_OPTION_OUTERMOST 8

// Count by kernel uprobes where no jump fits. A hit there costs microseconds; without this such sites are
// refused.
#define TRAPLINE_OPTION_KERNEL_UPROBES 16

// The words launch a program (`--`, or `-c` of `run`). It keeps the standard streams, and the command ends with the
// program's status.
#define TRAPLINE_COMMAND_LAUNCHES 1

// Result of a function. Numbers keep their meaning; later versions may have more of them.
enum trapline_error
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Done.
    TRAPLINE_ERROR_NONE = 0,
    // A pointer is null that must not be.
    TRAPLINE_ERROR_NULL_POINTER = 1,
    // A structure's size is smaller than its first version, or larger than 4096 bytes.
    TRAPLINE_ERROR_STRUCT_SIZE = 2,
    // A structure has bytes that this version does not know, and they are not zero.
    TRAPLINE_ERROR_UNKNOWN_FIELD = 3,
    // A flag that this version does not know.
    TRAPLINE_ERROR_UNKNOWN_FLAG = 4,
    // A text is not UTF-8.
    TRAPLINE_ERROR_NOT_UTF8 = 5,
    // There is no row with this number.
    TRAPLINE_ERROR_NO_ROW = 6,
    // This library has a fault; what the call was about is in an unknown state.
    TRAPLINE_ERROR_PANIC = 7,
    // Nothing to register.
    TRAPLINE_ERROR_EMPTY = 16,
    // There are more probes than there is room for.
    TRAPLINE_ERROR_TOO_MANY = 17,
    // A consumer without an entry or return handler.
    TRAPLINE_ERROR_NO_HANDLER = 18,
    // The file is no program or library, or has no such function.
    TRAPLINE_ERROR_FILE = 19,
    // The offset is beyond the file's end.
    TRAPLINE_ERROR_BEHIND_END = 20,
    // The offset is not in the file's code.
    TRAPLINE_ERROR_NOT_CODE = 21,
    // A return handler at another place than a function's start.
    TRAPLINE_ERROR_NOT_AN_ENTRY = 22,
    // The site cannot be patched.
    TRAPLINE_ERROR_REFUSED = 23,
    // The processor cannot save vector registers as handlers need it.
    TRAPLINE_ERROR_NO_EXTENDED_STATE = 24,
    // There is no memory for the engine.
    TRAPLINE_ERROR_NO_ENGINE = 25,
    // A handler may not call this: it would wait for itself.
    TRAPLINE_ERROR_INSIDE_HANDLER = 26,
    // Another tracer has patched the process.
    TRAPLINE_ERROR_IN_USE = 27,
    // The process cannot be patched, because of another tracer or for want of memory.
    TRAPLINE_ERROR_PATCH = 28,
    // The file cannot be read.
    TRAPLINE_ERROR_UNREADABLE = 29,
    // The file was written to since it was first registered.
    TRAPLINE_ERROR_CHANGED = 30,
    // The offset is inside an instruction.
    TRAPLINE_ERROR_INSIDE_INSTRUCTION = 31,
    // The file itself has a breakpoint there.
    TRAPLINE_ERROR_BREAKPOINT = 32,
    // The code in memory is not the file's.
    TRAPLINE_ERROR_DIFFERS = 33,
    // The semaphore's offset is not possible.
    TRAPLINE_ERROR_BAD_SEMAPHORE = 34,
    // The site is registered with another semaphore, or with none.
    TRAPLINE_ERROR_OTHER_SEMAPHORE = 35,
    // The system refuses to install a signal handler.
    TRAPLINE_ERROR_SIGNALS = 36,
    // The program has installed a SIGTRAP handler over the engine's.
    TRAPLINE_ERROR_TRAPS_TAKEN = 37,
    // The process' code cannot be written at all.
    TRAPLINE_ERROR_LOCKED = 38,
    // There is no room for so many calls in flight.
    TRAPLINE_ERROR_INSTANCES = 39,
    // The process does not exist, or may not be traced.
    TRAPLINE_ERROR_TARGET = 48,
    // A probe cannot be parsed.
    TRAPLINE_ERROR_BAD_PROBE = 49,
    // No process and no file is named.
    TRAPLINE_ERROR_NO_TARGET = 50,
    // There is no file with this name.
    TRAPLINE_ERROR_NO_FILE = 51,
    // No process that may be traced maps the file.
    TRAPLINE_ERROR_NOBODY_MAPS = 52,
    // No probe matches a function.
    TRAPLINE_ERROR_NO_MATCH = 53,
    // All that was found was refused.
    TRAPLINE_ERROR_ALL_REFUSED = 54,
    // The command does not take these words.
    TRAPLINE_ERROR_USAGE = 64,
    // The command found nothing to probe, or all of it was refused.
    TRAPLINE_ERROR_NOTHING_PROBED = 65,
    // The command failed, or a script is wrong.
    TRAPLINE_ERROR_FAILED = 66,
    // The command cannot be started.
    TRAPLINE_ERROR_NO_COMMAND = 67,
    // An error for which this interface has no number.
    TRAPLINE_ERROR_OTHER = 127,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trapline_error trapline_error;
#else
typedef int32_t trapline_error;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// Answer of a handler. Other numbers count as TRAPLINE_VERDICT_CONTINUE.
enum trapline_verdict
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : uint32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // Go on.
    TRAPLINE_VERDICT_CONTINUE = 0,
    // The probe is no longer needed. Once every consumer has answered so at one hit, it is taken out at the
    // next call that registers, unregisters or rescans.
    TRAPLINE_VERDICT_REMOVE = 1,
    // Do not call this consumer's return handler for this call.
    TRAPLINE_VERDICT_IGNORE_RETURN = 2,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trapline_verdict trapline_verdict;
#else
typedef uint32_t trapline_verdict;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// What a value is.
enum trapline_kind
#if defined(__cplusplus) || __STDC_VERSION__ >= 202311L
  : int32_t
#endif // defined(__cplusplus) || __STDC_VERSION__ >= 202311L
 {
    // There is no value: the pointer is null.
    TRAPLINE_KIND_NONE = 0,
    // `null`: the value is not known, or there is none.
    TRAPLINE_KIND_NULL = 1,
    // `true` or `false`.
    TRAPLINE_KIND_TRUTH = 2,
    // A number, whole or with a fraction.
    TRAPLINE_KIND_NUMBER = 3,
    // A text.
    TRAPLINE_KIND_TEXT = 4,
    // Values in their order.
    TRAPLINE_KIND_LIST = 5,
    // Values with names.
    TRAPLINE_KIND_OBJECT = 6,
};
#ifndef __cplusplus
#if __STDC_VERSION__ >= 202311L
typedef enum trapline_kind trapline_kind;
#else
typedef int32_t trapline_kind;
#endif // __STDC_VERSION__ >= 202311L
#endif // __cplusplus

// A running command. To stop it takes no lock, since a signal's handler may do that while another call goes on.
typedef struct trapline_command trapline_command;

// A registered consumer.
typedef struct trapline_registration trapline_registration;

// A session's report at one moment. Texts in its rows are valid until it is freed.
typedef struct trapline_report trapline_report;

// Probes at work in other processes. Only the thread that started a session may use it: for the kernel, that
// thread is the tracer.
typedef struct trapline_session trapline_session;

// A value of an object that the command wrote.
typedef struct trapline_value trapline_value;

// A thread's registers. At a function's entry the arguments are in rdi, rsi, rdx, rcx, r8, r9; at its return
// the value is in rax.
typedef struct trapline_regs {
    uint64_t rax;
    uint64_t rcx;
    uint64_t rdx;
    uint64_t rbx;
    uint64_t rsp;
    uint64_t rbp;
    uint64_t rsi;
    uint64_t rdi;
    uint64_t r8;
    uint64_t r9;
    uint64_t r10;
    uint64_t r11;
    uint64_t r12;
    uint64_t r13;
    uint64_t r14;
    uint64_t r15;
    uint64_t rip;
    uint64_t rflags;
} trapline_regs;

// One hit, as a handler sees it. It may grow at the end.
typedef struct trapline_hit {
    // Registers of the thread, which goes on with the values left here. If a handler changes rip, the
    // original instruction does not run. Changes of rip or rsp must have been declared.
    struct trapline_regs *regs;
    // Address of the site that was hit; for a return handler, that of the entry.
    uint64_t site;
    // A word for this consumer and this call: the return handler finds what the entry handler left.
    uint64_t cookie;
} trapline_hit;

// A handler. The thread that hits calls it in the middle of whatever it does, like a signal handler. So it
// must be async-signal-safe: no allocation, no lock that the interrupted code may hold. It must not unwind,
// block for long, or call functions of this library. Sites that it hits itself are not probed. It may leave
// by longjmp or end its thread; it holds nothing then. The answer of a return handler is ignored.
typedef trapline_verdict (*trapline_handler)(void *data, struct trapline_hit *hit);

// Called first at every hit: whether this consumer wants the hit.
typedef bool (*trapline_filter)(void *data, const struct trapline_hit *hit);

// A site, and the functions that are called there.
typedef struct trapline_probe {
    // sizeof; set by the caller.
    size_t size;
    // Path of the file. With a function, also a library's short name ("libc") or the program's own name,
    // among the files that this process has mapped.
    const char *file;
    // A function in the file: a name that only one function has, or a pattern, of which the first match
    // counts. Null: the offset alone gives the place.
    const char *function;
    // Bytes from the start of the file to the instruction; with a function, from the function's start.
    uint64_t offset;
    // Called when the instruction is about to run; may be null.
    trapline_handler entry;
    // Called when the function returns; may be null.
    trapline_handler returns;
    // Called before both; may be null.
    trapline_filter filter;
    // Handed to all of them; must stay valid until unregistering has returned.
    void *data;
    // TRAPLINE_PROBE_MOVES_IP and so on.
    uint32_t flags;
    // How many calls may wait for their return handler at once; 0: a number that the library chooses.
    uint32_t maxactive;
    // Bytes from the start of the file to a USDT semaphore, which is raised while the site is probed; 0:
    // none.
    uint64_t semaphore;
    // How the ends of calls are seen for the return handler: TRAPLINE_RETURNS_EXITS and so on. Since the
    // second version.
    uint64_t returns_by;
} trapline_probe;

// Hits of a site, summed over all its consumers, and how the site is reached now.
typedef struct trapline_tally {
    // sizeof; set by the caller.
    size_t size;
    // Hits at which consumers were called.
    uint64_t hits;
    // Hits missed because another hit of the same thread was going on.
    uint64_t nested;
    // Hits missed because there were more threads than the library can distinguish.
    uint64_t unplaced;
    // Calls that ended without a call of their return handler, although it was requested.
    uint64_t unreturned;
    // Number of mappings in which a jump leads from the site.
    uint64_t by_jump;
    // Number of mappings in which a trap leads from it.
    uint64_t by_trap;
    // Calls without a return handler because too many calls were in flight.
    uint64_t empty;
} trapline_tally;

// What to trace, and how.
typedef struct trapline_options {
    // sizeof; set by the caller.
    size_t size;
    // Pids of processes. If there are none: every process that maps a file which a probe names.
    const uint32_t *pids;
    // Number of pids.
    size_t pids_len;
    // Probes, in bpftrace's words: "libssl:SSL_*", "uretprobe:/bin/x:f", "usdt:libc:libc:setjmp".
    const char *const *probes;
    // Number of probes.
    size_t probes_len;
    // Time only calls that take at least this long.
    uint64_t at_least_ns;
    // TRAPLINE_OPTION_FOLLOW and so on.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
} trapline_options;

// Hits of one site in one process.
typedef struct trapline_count_row {
    // sizeof; set by the caller.
    size_t size;
    // "uprobe:PATH:FUNCTION".
    const char *probe;
    // Short form, for tables.
    const char *label;
    // The file's path as the process sees it.
    const char *file;
    // Bytes from the start of the file to the probed instruction.
    uint64_t offset;
    // Hits since attach.
    uint64_t hits;
    // Hits since the last report.
    uint64_t delta;
    // Hits of the whole process that could not be recorded.
    uint64_t missed;
    // Process id.
    uint32_t pid;
    // Zero.
    uint32_t reserved;
} trapline_count_row;

// Durations of one function in one process, in nanoseconds; see trapline_report_percentile.
typedef struct trapline_times_row {
    // sizeof; set by the caller.
    size_t size;
    // "uprobe:PATH:FUNCTION".
    const char *probe;
    // Short form, for tables.
    const char *label;
    // The file's path as the process sees it.
    const char *file;
    // Bytes from the start of the file to the function.
    uint64_t offset;
    // Calls that ended and took at least as long as requested.
    uint64_t calls;
    // Calls that had begun and not ended.
    uint64_t in_flight;
    // Exits without a known entry: calls that were running at the attach.
    uint64_t unpaired;
    // Entries without an exit: left by longjmp or an exception.
    uint64_t unreturned;
    // Sum of durations.
    uint64_t total_ns;
    // Shortest call; 0 without calls.
    uint64_t min_ns;
    // Longest call.
    uint64_t max_ns;
    // Process id.
    uint32_t pid;
    // Zero.
    uint32_t reserved;
} trapline_times_row;

// A site that a probe means and that is not probed.
typedef struct trapline_refusal_row {
    // sizeof; set by the caller.
    size_t size;
    // "uprobe:PATH:FUNCTION".
    const char *probe;
    // A stable word for the kind of reason.
    const char *kind;
    // The reason, with its numbers.
    const char *reason;
    // Process id.
    uint32_t pid;
    // Zero.
    uint32_t reserved;
} trapline_refusal_row;

// What the command is to do.
typedef struct trapline_command_options {
    // sizeof; set by the caller.
    size_t size;
    // Path of the command; null: what the environment's TRAPLINE names, else `trapline` in PATH.
    const char *program;
    // A verb that writes JSON, and its words: "trace", "-p", "4711", "libc:getenv(str name) -> str". The options
    // `--json` and `-o` are added.
    const char *const *words;
    // Number of words.
    size_t words_len;
    // TRAPLINE_COMMAND_LAUNCHES.
    uint32_t flags;
    // Zero.
    uint32_t reserved;
} trapline_command_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Describes an error in a few words. Never null.
const char *trapline_error_text(int32_t error);

// Describes the last failure in this thread, with names and numbers; empty if there was none. Valid until
// the thread's next call that fails.
const char *trapline_last_error(void);

// What the kernel's uprobes would return in the case of this thread's last failure, as a positive errno; 0
// if they have no such case.
int32_t trapline_last_errno(void);

// Registers a consumer on (file, offset). It is called in every executable, private, unwritable mapping of
// the file that this process has or will have (see trapline_rescan), from the return of this function on.
// trapline_unregister ends it.
trapline_error trapline_register(const struct trapline_probe *probe,
                                 struct trapline_registration **registration);

// Registers all, in their order, or none. `probes` is an array of structures, which all have the size of the
// first one. `registrations` has room for as many.
trapline_error trapline_register_all(const struct trapline_probe *probes,
                                     size_t count,
                                     struct trapline_registration **registrations);

// Unregisters a consumer, and returns when no handler of it can still run. The registration is gone then,
// unless a handler made this call. Null is allowed, and does nothing.
trapline_error trapline_unregister(struct trapline_registration *registration);

// Unregisters all, and waits once, until no handler of any of them can still run. Otherwise as
// trapline_unregister.
trapline_error trapline_unregister_all(struct trapline_registration *const *registrations, size_t count);

// Probes what was mapped since the last look (dlopen, mmap), and drops what was unmapped. `sites`, if not
// null, is set to the number of sites that were patched.
trapline_error trapline_rescan(size_t *sites);

// Fills in what the registration's site has counted. The caller sets `tally->size`.
trapline_error trapline_tally_of(const struct trapline_registration *registration,
                                 struct trapline_tally *tally);

// Starts counting. trapline_detach ends it.
trapline_error trapline_count(const struct trapline_options *options, struct trapline_session **session);

// Starts timing calls, from entry to return. trapline_detach ends it.
trapline_error trapline_latency(const struct trapline_options *options, struct trapline_session **session);

// Looks for new libraries, executed programs and processes that ended. Call it a few times a second.
// `goes_on`, if not null, is set to false when nothing is left to trace, else to true.
trapline_error trapline_poll(struct trapline_session *session, bool *goes_on);

// Makes a report of counts or durations since attach. The caller frees it by trapline_report_free.
trapline_error trapline_read(struct trapline_session *session, struct trapline_report **report);

// Takes all patches out, and frees the session. `report`, if not null, is set to the last report, counted
// after the last patch was out.
trapline_error trapline_detach(struct trapline_session *session, struct trapline_report **report);

// Number of counted sites.
size_t trapline_report_counts(const struct trapline_report *report);

// Fills in the row of one counted site.
trapline_error trapline_report_count(const struct trapline_report *report,
                                     size_t index,
                                     struct trapline_count_row *row);

// Number of timed functions.
size_t trapline_report_times(const struct trapline_report *report);

// Fills in the row of one timed function.
trapline_error trapline_report_time(const struct trapline_report *report,
                                    size_t index,
                                    struct trapline_times_row *row);

// Sets `ns` to the duration that a share (0 to 1) of a timed function's calls did not exceed, in
// nanoseconds. It is off by at most 1/32.
trapline_error trapline_report_percentile(const struct trapline_report *report,
                                          size_t index,
                                          double share,
                                          uint64_t *ns);

// Number of sites that are not probed.
size_t trapline_report_refusals(const struct trapline_report *report);

// Fills in the row of one site that is not probed.
trapline_error trapline_report_refusal(const struct trapline_report *report,
                                       size_t index,
                                       struct trapline_refusal_row *row);

// What else a user should know: one sentence for each `index`, and null after the last.
const char *trapline_report_notice(const struct trapline_report *report, size_t index);

// Frees a report. Null is allowed, and does nothing.
void trapline_report_free(struct trapline_report *report);

// Starts the command `trapline` with a verb that writes JSON: count, lat, hist, graph, trace, stack, top, watch, list,
// status, detach, doctor, or run. It is another process: this library starts it, and needs it to be installed.
// trapline_command_end ends it.
trapline_error trapline_command_start(const struct trapline_command_options *options,
                                      struct trapline_command **command);

// Waits for the next object. `object` is set to it, or to null when there will be none any more. It is alive until the
// next call with this command.
trapline_error trapline_command_next(struct trapline_command *command,
                                     const struct trapline_value **object);

// Sets `ready` to whether trapline_command_next would return at once. Waits for so many milliseconds at most, and
// without an end if they are negative.
trapline_error trapline_command_ready(struct trapline_command *command,
                                      int32_t milliseconds,
                                      bool *ready);

// Asks the command to detach. Its last objects still come. Another thread may call this, and a signal's handler. Null
// is allowed, and does nothing.
void trapline_command_stop(const struct trapline_command *command);

// Ends the command, and waits until it has detached. Objects that were not taken are gone. `status`, if not null, is set
// to its exit status, or to 128 and the number of the signal that killed it. A command that failed by itself is an error
// here.
trapline_error trapline_command_end(struct trapline_command *command,
                                    int32_t *status);

// What a value is.
trapline_kind trapline_value_kind(const struct trapline_value *value);

// The field of an object; null if there is none with this name.
const struct trapline_value *trapline_value_field(const struct trapline_value *value, const char *name);

// How many items a list has, fields an object, bytes a text; else 0.
size_t trapline_value_len(const struct trapline_value *value);

// An item of a list, or the value of an object's field; null behind the last.
const struct trapline_value *trapline_value_item(const struct trapline_value *value, size_t index);

// The name of an object's field; null behind the last.
const char *trapline_value_name(const struct trapline_value *value, size_t index);

// A text, with a zero behind its trapline_value_len bytes; null if the value is none.
const char *trapline_value_text(const struct trapline_value *value);

// Sets `number` and returns true if the value is a whole number that fits.
bool trapline_value_unsigned(const struct trapline_value *value, uint64_t *number);

// Sets `number` and returns true if the value is a whole number that fits.
bool trapline_value_signed(const struct trapline_value *value, int64_t *number);

// Sets `number` and returns true if the value is a number. One that is no `double` is rounded to the nearest.
bool trapline_value_double(const struct trapline_value *value, double *number);

// Sets `truth` and returns true if the value is `true` or `false`.
bool trapline_value_truth(const struct trapline_value *value, bool *truth);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* TRAPLINE_H */
