// A page whose code begins behind its first byte, rewritten through another mapping: by the C library's memcpy, or by plain stores of words.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <unistd.h>
#define VA ((void *)0xaaaab3d0d000ul)
static uint64_t pfn(void *at) { int f = open("/proc/self/pagemap", O_RDONLY); uint64_t e = 0; pread(f, &e, 8, (uintptr_t)at / 4096 * 8); close(f); return e & ((1ul << 55) - 1); }
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;
static void words(volatile uint32_t *to, const uint32_t *from, int n) { for (int i = 0; i < n; i++) to[i] = from[i]; }
static void go(const char *name, int fresh, int plain, int at) {
  int wrong = 0, same = 0, fd = -1; uint64_t last = 0;
  for (int r = 1; r <= 200; r++) {
    if (fresh || fd < 0) { if (fd >= 0) close(fd); fd = memfd_create("x", 0); ftruncate(fd, 4096); }
    uint32_t *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    uint32_t code[8] = {0}; code[at] = 0x52800000 | r << 5; code[at + 1] = 0xd65f03c0;
    if (plain) words(p, code, 8); else copy(p, code, sizeof code);
    munmap(p, 4096);
    mmap(VA, 4096, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, 0);
    unsigned (*f)(void) = (void *)((char *)VA + 4 * at);
    unsigned got = f(); uint64_t now = pfn(VA);
    same += now == last; last = now;
    if (got != r && wrong++ < 2) printf("  round %d: got %u, memory says %08x\n", r, got, ((uint32_t *)VA)[at]);
    munmap(VA, 4096);
  }
  close(fd);
  printf("%s, code at byte %d: 200 rounds, %d with the page of the last, %d wrong\n", name, 4 * at, same, wrong);
}
int main() {
  setvbuf(stdout, 0, _IOLBF, 0);
  if (getpid() == 1) { mkdir("/proc", 0755); mount("proc", "/proc", "proc", 0, 0); }
  printf("SVE %d\n", !!(getauxval(AT_HWCAP) & (1 << 22)));
  for (int at = 0; at <= 5; at += 5)
    for (int fresh = 0; fresh < 2; fresh++) {
      go(fresh ? "new page, memcpy" : "kept page, memcpy", fresh, 0, at);
      go(fresh ? "new page, words" : "kept page, words", fresh, 1, at);
    }
  if (getpid() == 1) { sync(); reboot(RB_POWER_OFF); }
}
