/* Shows calls of functions with their arguments and values. It runs the command `trapline trace` with the words that it is
 * given, and reads its JSON objects:
 *
 *     cc calls.c -ltrapline -o calls && ./calls 'libc:getenv(str name) -> str' -- ls /
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <trapline.h>

static void check(trapline_error error)
{
	if (error == TRAPLINE_ERROR_NONE)
		return;
	fprintf(stderr, "%s: %s\n", trapline_error_text(error), trapline_last_error());
	exit(1);
}

static void show(const trapline_value *value)
{
	int64_t number;
	double fraction;

	if (trapline_value_text(value))
		printf("\"%s\"", trapline_value_text(value));
	else if (trapline_value_signed(value, &number))
		printf("%lld", (long long)number);
	else if (trapline_value_double(value, &fraction))
		printf("%g", fraction);
	else
		printf("?");
}

static void show_call(const trapline_value *call)
{
	const trapline_value *args = trapline_value_field(call, "args");

	printf("%s(", trapline_value_text(trapline_value_field(call, "probe")));
	for (size_t n = 0; n < trapline_value_len(args); n++) {
		const trapline_value *arg = trapline_value_item(args, n);
		printf("%s%s=", n ? ", " : "", trapline_value_text(trapline_value_field(arg, "name")));
		show(trapline_value_field(arg, "value"));
	}
	printf(")");
	if (trapline_value_field(call, "ret")) {
		printf(" = ");
		show(trapline_value_field(call, "ret"));
	}
	puts("");
}

int main(int argc, char **argv)
{
	if (argc < 2) {
		fprintf(stderr, "usage: calls FUNCTION... [-p PID | -- COMMAND...]\n");
		return 2;
	}
	const char **words = calloc((size_t)argc + 1, sizeof *words);
	struct trapline_command_options options = { .size = sizeof options, .words = words, .words_len = (size_t)argc + 1 };
	words[0] = "trace";
	words[1] = "-q";
	for (int n = 1; n < argc; n++) {
		words[n + 1] = argv[n];
		if (!strcmp(argv[n], "--"))
			options.flags = TRAPLINE_COMMAND_LAUNCHES;
	}
	struct trapline_command *command;
	const trapline_value *object;
	int32_t status;
	check(trapline_command_start(&options, &command));
	free(words);
	for (;;) {
		check(trapline_command_next(command, &object));
		if (!object)
			break;
		const char *type = trapline_value_text(trapline_value_field(object, "type"));
		if (type && !strcmp(type, "call"))
			show_call(object);
	}
	check(trapline_command_end(command, &status));
	return status;
}
