#include <stdio.h>
#include <stdlib.h>
#include <pthread.h>
#include <unistd.h>
#include <stdatomic.h>
_Atomic long cell; static volatile int stop;
static void*busy(void*x){ while(!stop); return 0;}
int main(int c,char**v){ long n=atol(v[1]); int nb=atoi(v[2]); pthread_t b[8]; char l[9]; printf("ready\n"); fflush(stdout); fgets(l,9,stdin);
 for(int i=0;i<nb;i++) pthread_create(&b[i],0,busy,0);
 for(long i=0;i<n;i++) atomic_fetch_add(&cell,1);
 stop=1; printf("done %ld\n",(long)cell); fflush(stdout); fgets(l,9,stdin); return 0;}
