/* Tests what runs of the command give to C: calls with values, histograms, stacks, scripts, and how runs end. The judge
 * is this program itself, which is launched as `commands child`, and knows what it calls. C11. */
#define _GNU_SOURCE
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <trapline.h>
#include <unistd.h>

#define CHECK(what) ((what) ? (void)0 : failed(__LINE__, #what))
#define IS(error, call) is(__LINE__, TRAPLINE_ERROR_##error, call)
#define CALLS 100

static void failed(int line, const char *what)
{
	printf("commands.c:%d: %s; last error: %s\n", line, what, trapline_last_error());
	exit(1);
}

static void is(int line, int32_t expected, int32_t got)
{
	if (expected == got)
		return;
	printf("expected %s, got %s; ", trapline_error_text(expected), trapline_error_text(got));
	failed(line, "an error");
}

__attribute__((noinline, noclone, visibility("default"))) long work(int n, const char *text)
{
	__asm__ volatile("" ::: "memory");
	return n * 2l + (long)strlen(text);
}

static long (*volatile call_work)(int, const char *) = work;

/* Its status says how many descriptors it was started with. */
static int child(void)
{
	int descriptors = 0;
	DIR *all = opendir("/proc/self/fd");
	while (readdir(all))
		descriptors++;
	closedir(all);
	for (int n = 0; n < CALLS; n++)
		if (call_work(n, n % 2 ? "odd" : "even") != n * 2l + (n % 2 ? 3 : 4))
			return 1;
	return descriptors;
}

static trapline_command *start(uint32_t flags, size_t len, const char *const *words)
{
	trapline_command *command = NULL;
	trapline_command_options options = { .size = sizeof options, .words = words, .words_len = len, .flags = flags };
	IS(NONE, trapline_command_start(&options, &command));
	return command;
}
#define START(flags, ...) start(flags, sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *), (const char *[]){ __VA_ARGS__ })
#define LAUNCH(...) START(TRAPLINE_COMMAND_LAUNCHES, __VA_ARGS__)

static const trapline_value *next(trapline_command *command)
{
	const trapline_value *object;
	IS(NONE, trapline_command_next(command, &object));
	return object;
}

static const trapline_value *field(const trapline_value *value, const char *name)
{
	return trapline_value_field(value, name);
}

static uint64_t number(const trapline_value *value)
{
	uint64_t number = 0;
	CHECK(trapline_value_unsigned(value, &number));
	return number;
}

static int has(const trapline_value *value, const char *text)
{
	return trapline_value_kind(value) == TRAPLINE_KIND_TEXT && !strcmp(trapline_value_text(value), text);
}

/* The next object of a type; null at the end. */
static const trapline_value *next_of(trapline_command *command, const char *type)
{
	const trapline_value *object;
	while ((object = next(command)) && !has(field(object, "type"), type))
		;
	return object;
}

static void ends(trapline_command *command, int expected)
{
	int32_t status = -1;
	CHECK(next(command) == NULL);
	IS(NONE, trapline_command_end(command, &status));
	if (status != expected) {
		printf("status %d, expected %d; ", status, expected);
		failed(__LINE__, "a status");
	}
}

/* Calls `work` with 0, 1, … until its input ends. */
static int loop(void)
{
	fd_set set;
	for (int n = 0;; n++) {
		struct timeval none = { 0, 100 };
		call_work(n, "loop");
		FD_ZERO(&set);
		FD_SET(0, &set);
		if (select(1, &set, NULL, NULL, &none) > 0)
			return 0;
	}
}

static char self[4096], function[4200], plain[4200], script[4300], launched[4200];

static void traces(int bare)
{
	trapline_command *command = LAUNCH("trace", "-q", function, "--", self, "child");
	const trapline_value *call;
	for (uint64_t n = 0; n < CALLS; n++) {
		CHECK((call = next_of(command, "call")));
		const trapline_value *args = field(call, "args");
		CHECK(trapline_value_kind(args) == TRAPLINE_KIND_LIST && trapline_value_len(args) == 2);
		CHECK(has(field(trapline_value_item(args, 0), "name"), "n"));
		CHECK(number(field(trapline_value_item(args, 0), "value")) == n);
		const trapline_value *text = field(trapline_value_item(args, 1), "value");
		CHECK(has(text, n % 2 ? "odd" : "even") && trapline_value_len(text) == (n % 2 ? 3 : 4));
		int64_t ret;
		CHECK(trapline_value_signed(field(call, "ret"), &ret) && ret == (int64_t)(n * 2 + (n % 2 ? 3 : 4)));
		CHECK(trapline_value_item(args, 2) == NULL && trapline_value_name(call, 1000) == NULL);
	}
	CHECK((call = next_of(command, "count")));
	CHECK(number(field(call, "missed")) == 0);
	ends(command, bare);
}

static void aggregates(int bare)
{
	trapline_command *command = LAUNCH("hist", "-q", "--top=5", "text", function, "--", self, "child");
	const trapline_value *object = next_of(command, "hist");
	const trapline_value *probe = trapline_value_item(field(object, "probes"), 0);
	const trapline_value *rows = field(trapline_value_item(field(probe, "parts"), 0), "rows");
	CHECK(trapline_value_len(rows) == 2);
	for (size_t n = 0; n < 2; n++) {
		const trapline_value *row = trapline_value_item(rows, n);
		CHECK(has(trapline_value_item(row, 0), "odd") || has(trapline_value_item(row, 0), "even"));
		CHECK(number(trapline_value_item(row, 1)) == CALLS / 2);
	}
	ends(command, bare);
}

static void stacks(int bare)
{
	trapline_command *command = LAUNCH("stack", "-q", "--unwind", "dwarf", plain, "--", self, "child");
	uint64_t hits = 0;
	const trapline_value *object;
	while ((object = next(command))) {
		if (!has(field(object, "type"), "stack"))
			continue;
		hits += number(field(object, "hits"));
		const trapline_value *frames = field(object, "frames");
		CHECK(trapline_value_len(frames) > 1);
		const trapline_value *functions = field(trapline_value_item(frames, 0), "functions");
		CHECK(has(field(trapline_value_item(functions, 0), "name"), "work"));
	}
	CHECK(hits == CALLS);
	ends(command, bare);
}

static void scripts(int bare)
{
	trapline_command *command = LAUNCH("run", "-q", "-e", script, "-c", launched);
	const trapline_value *map = field(field(next_of(command, "map"), "data"), "@");
	CHECK(trapline_value_kind(map) == TRAPLINE_KIND_OBJECT && trapline_value_len(map) == 2);
	CHECK(number(field(map, "0")) == CALLS / 2 && number(field(map, "1")) == CALLS / 2);
	while (next(command))
		;
	/* A script's status is its own. */
	(void)bare;
	ends(command, 0);
}

static trapline_command *stopped;

static void on_signal(int number)
{
	(void)number;
	trapline_command_stop(stopped);
}

/* Attaches to a program that runs, and stops by a signal's handler. */
static void attaches(void)
{
	int pipes[2], status;
	CHECK(!pipe(pipes));
	pid_t pid = fork();
	if (!pid) {
		dup2(pipes[0], 0);
		close(pipes[0]);
		close(pipes[1]);
		execl(self, self, "loop", NULL);
		_exit(127);
	}
	close(pipes[0]);
	char text[20];
	snprintf(text, sizeof text, "%d", pid);
	/* It may not yet run this program. */
	char path[40], name[4096] = "";
	snprintf(path, sizeof path, "/proc/%d/cmdline", pid);
	while (!strstr(name, "commands") || !memmem(name, sizeof name, "loop", 5)) {
		FILE *file = fopen(path, "r");
		memset(name, 0, sizeof name);
		CHECK(fread(name, 1, sizeof name - 1, file) < sizeof name);
		fclose(file);
	}
	stopped = START(0, "trace", "-p", text, function);
	bool ready = false;
	IS(NONE, trapline_command_ready(stopped, 0, &ready));
	IS(NONE, trapline_command_ready(stopped, -1, &ready));
	CHECK(ready);
	signal(SIGUSR1, on_signal);
	uint64_t calls = 0, last = 0;
	const trapline_value *object;
	while ((object = next(stopped))) {
		if (!has(field(object, "type"), "call"))
			continue;
		uint64_t n = number(field(trapline_value_item(field(object, "args"), 0), "value"));
		CHECK(!calls || n == last + 1);
		last = n;
		if (++calls == 50)
			raise(SIGUSR1);
	}
	CHECK(calls >= 50);
	int32_t ended = -1;
	IS(NONE, trapline_command_end(stopped, &ended));
	CHECK(ended == 0);
	close(pipes[1]);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

/* How a run of these words ends: nothing but errors comes. */
static int32_t refused(trapline_error expected, const char *why, size_t len, const char *const *words)
{
	trapline_command *command = start(0, len, words);
	const trapline_value *object;
	int32_t status = -1;
	while ((object = next(command)))
		CHECK(has(field(object, "type"), "error"));
	is(__LINE__, expected, trapline_command_end(command, &status));
	CHECK(strstr(trapline_last_error(), why) && !strstr(trapline_last_error(), "trapline: "));
	return status;
}
#define REFUSED(error, why, ...) refused(TRAPLINE_ERROR_##error, why, sizeof((const char *[]){ __VA_ARGS__ }) / sizeof(char *), (const char *[]){ __VA_ARGS__ })

static void errors(void)
{
	const char *words[] = { "count", "libc:malloc" };
	trapline_command_options options = { .size = sizeof options, .program = "/nowhere/trapline", .words = words, .words_len = 2 };
	trapline_command *none = (trapline_command *)words;
	IS(NO_COMMAND, trapline_command_start(&options, &none));
	CHECK(strstr(trapline_last_error(), "/nowhere/trapline") && none == (trapline_command *)words);
	options.words_len = 0;
	IS(USAGE, trapline_command_start(&options, &none));
	options.words_len = 2;
	options.flags = 1u << 31;
	IS(UNKNOWN_FLAG, trapline_command_start(&options, &none));
	options.flags = 0;
	options.words = NULL;
	IS(NULL_POINTER, trapline_command_start(&options, &none));
	IS(NULL_POINTER, trapline_command_start(NULL, &none));
	IS(NULL_POINTER, trapline_command_start(&options, NULL));
	IS(NULL_POINTER, trapline_command_next(NULL, NULL));
	IS(NULL_POINTER, trapline_command_ready(NULL, 0, NULL));
	IS(NULL_POINTER, trapline_command_end(NULL, NULL));
	trapline_command_stop(NULL);
	uint64_t unused;
	CHECK(trapline_value_kind(field(NULL, "x")) == TRAPLINE_KIND_NONE && !trapline_value_unsigned(NULL, &unused));

	CHECK(REFUSED(USAGE, "--no-such-option", "count", "--no-such-option") == 2);
	CHECK(REFUSED(NOTHING_PROBED, "no_such_function", "count", "-c", self, "no_such_function") == 3);
	CHECK(REFUSED(FAILED, "2147483632", "count", "-p", "2147483632", "libc:malloc") == 1);
	CHECK(REFUSED(FAILED, "nonsense", "run", "-e", "nonsense") == 1);
}

/* A stand-in for the command: a shell script, to which the output is its third word. */
static trapline_command *shell(uint32_t flags, const char *text)
{
	char path[] = "/tmp/trapline-commands-XXXXXX";
	int file = mkstemp(path);
	CHECK(file >= 0 && write(file, text, strlen(text)) == (ssize_t)strlen(text) && !close(file));
	const char *words[] = { path };
	trapline_command_options options = { .size = sizeof options, .program = "/bin/sh", .words = words, .words_len = 1, .flags = flags };
	trapline_command *command;
	IS(NONE, trapline_command_start(&options, &command));
	/* The script takes itself away. */
	return command;
}

static void deaths(void)
{
	int32_t status;
	trapline_command *command = shell(0, "rm $0; exec 3> $3; echo '{\"n\": 7}' >&3; printf '{\"cut\": ' >&3; kill -9 $$");
	CHECK(number(field(next(command), "n")) == 7 && next(command) == NULL && next(command) == NULL);
	IS(FAILED, trapline_command_end(command, &status));
	CHECK(status == 128 + SIGKILL);

	/* The same with a launched program: the signal is the command's, and a number is the program's. */
	command = shell(TRAPLINE_COMMAND_LAUNCHES, "rm $0; exec 3> $3; echo '{\"n\": 7}' >&3; kill -9 $$");
	CHECK(next(command) != NULL && next(command) == NULL);
	IS(FAILED, trapline_command_end(command, &status));
	command = shell(TRAPLINE_COMMAND_LAUNCHES, "rm $0; exec 3> $3; echo '{\"n\": 7}' >&3; exit 137");
	CHECK(next(command) != NULL && next(command) == NULL);
	IS(NONE, trapline_command_end(command, &status));
	CHECK(status == 137);

	const trapline_value *object;
	command = shell(0, "rm $0; echo oh dear >&2; exec 3> $3; echo no json >&3; echo '[1, 2]' >&3; exit 1");
	IS(OTHER, trapline_command_next(command, &object));
	CHECK(strstr(trapline_last_error(), "no json") && trapline_value_len(next(command)) == 2);
	CHECK(next(command) == NULL);
	IS(FAILED, trapline_command_end(command, &status));
	CHECK(status == 1 && !strcmp(trapline_last_error(), "oh dear"));

	/* It writes more than a pipe holds, until it is asked to stop; nobody reads. */
	command = shell(0, "rm $0; trap 'exit 0' TERM; exec 3> $3; while :; do echo '{\"n\": 1}'; done >&3");
	CHECK(number(field(next(command), "n")) == 1);
	IS(NONE, trapline_command_end(command, &status));
	CHECK(status == 0);
}

/* A caller without standard streams: the pipe may get one of their numbers. */
static void without_streams(void)
{
	int status;
	pid_t pid = fork();
	if (!pid) {
		close(0);
		close(1);
		close(2);
		trapline_command *command = START(0, "list", plain);
		const trapline_value *listed = next_of(command, "list");
		_exit(listed && !next(command) && !trapline_command_end(command, NULL) ? 0 : 1);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return !strcmp(argv[1], "child") ? child() : loop();
	CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
	snprintf(function, sizeof function, "%s:work(int n, str text) -> long", self);
	snprintf(plain, sizeof plain, "%s:work", self);
	snprintf(script, sizeof script, "uprobe:%s:work { @[arg0 %% 2] = count(); }", self);
	snprintf(launched, sizeof launched, "%s child", self);
	int bare = WEXITSTATUS(system(launched));
	CHECK(bare > 1 && bare < 100);
	traces(bare);
	aggregates(bare);
	stacks(bare);
	scripts(bare);
	attaches();
	without_streams();
	errors();
	deaths();
	puts("done");
	return 0;
}
