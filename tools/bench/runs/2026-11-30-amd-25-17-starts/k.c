#include <stdio.h>
#include <unistd.h>
volatile long n;
__attribute__((noinline)) long leaf(long x){ n += x; return n; }
int main(void){ for(long i=0;i<1000;i++) leaf(i); if(n!=499500) return 3; write(1,"a",1); char c; read(0,&c,1); for(long i=0;i<1000;i++) leaf(i); return n==999000?0:4; }
