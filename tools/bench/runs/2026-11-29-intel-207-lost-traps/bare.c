#define _GNU_SOURCE
#include <linux/perf_event.h>
#include <linux/hw_breakpoint.h>
#include <sys/syscall.h>
#include <sys/ioctl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <stdatomic.h>
#include <time.h>
static volatile long traps, codes[8];
static _Atomic long cell;
static volatile int stop;
static void h(int s, siginfo_t*i, void*u){ traps++; codes[i->si_code&7]++; }
static int open_bp(int tid,int dis){ struct perf_event_attr a; memset(&a,0,sizeof a); a.size=sizeof a; a.type=PERF_TYPE_BREAKPOINT; a.bp_type=HW_BREAKPOINT_W; a.bp_addr=(unsigned long)&cell; a.bp_len=8; a.exclude_kernel=1; a.exclude_hv=1; a.disabled=dis; return syscall(SYS_perf_event_open,&a,tid,-1,-1,0);}
static int wtid; 
static void*churn(void*x){ long n=0; while(!stop){ int f=open_bp(wtid,1); if(f<0){continue;} ioctl(f,PERF_EVENT_IOC_ENABLE,0); struct timespec t={0,300000}; nanosleep(&t,0); close(f); n++; } printf("churned %ld\n",n); return 0;}
static void*busy(void*x){ while(!stop); return 0;}
int main(int c,char**v){ int mode=atoi(v[1]); long n=atol(v[2]); int nb=atoi(v[3]);
 struct sigaction sa={.sa_sigaction=h,.sa_flags=SA_SIGINFO}; sigaction(SIGTRAP,&sa,0);
 wtid=syscall(SYS_gettid); pthread_t t,b[16];
 int f=-1; if(mode==0) f=open_bp(0,0); else pthread_create(&t,0,churn,0);
 for(int i=0;i<nb;i++) pthread_create(&b[i],0,busy,0);
 struct timespec t0,t1; clock_gettime(CLOCK_MONOTONIC,&t0);
 for(long i=0;i<n;i++){ atomic_fetch_add(&cell,1); if(mode==2){struct timespec s={0,20000}; nanosleep(&s,0);} }
 clock_gettime(CLOCK_MONOTONIC,&t1); stop=1; long long cnt=0; if(f>=0) {read(f,&cnt,8);} else pthread_join(t,0);
 printf("mode %d busy %d: %ld writes, counted %lld, SIGTRAP %ld (code1 %ld code4 %ld), %.2f s\n",mode,nb,n,cnt,traps,codes[1],codes[4],t1.tv_sec-t0.tv_sec+(t1.tv_nsec-t0.tv_nsec)/1e9);
}
