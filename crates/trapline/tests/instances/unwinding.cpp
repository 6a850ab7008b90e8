// Frames that are left by exceptions, and walked by backtrace(). Built as a library, loaded by dlopen.
#include <cstdint>
#include <execinfo.h>

#define VISIBLE extern "C" __attribute__((noinline, visibility("default")))

VISIBLE uint64_t thrower(uint64_t n)
{
	if (n % 4 != 3)
		throw n;
	asm volatile("" : "+r"(n));
	return n + 1;
}

struct Counted {
	uint64_t &count;
	~Counted() { ++count; }
};

VISIBLE uint64_t through(uint64_t n, uint64_t *unwound)
{
	Counted counted{*unwound};
	return thrower(n) + 1;
}

// Two places that throw, with the same stack word.
VISIBLE uint64_t caught(uint64_t n, uint64_t *unwound)
{
	uint64_t sum = 0;
	try {
		sum += through(n, unwound);
	} catch (uint64_t thrown) {
		sum += thrown;
	}
	try {
		sum += through(n + 1, unwound);
	} catch (uint64_t thrown) {
		sum += thrown;
	}
	return sum;
}

VISIBLE uint64_t walked(void **frames, uint64_t most)
{
	uint64_t n = backtrace(frames, most);
	asm volatile("" : "+r"(n));
	return n;
}

VISIBLE uint64_t walker(void **frames, uint64_t most)
{
	uint64_t n = walked(frames, most);
	asm volatile("" : "+r"(n));
	return n;
}
