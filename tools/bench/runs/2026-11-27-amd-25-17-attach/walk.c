// What a walk over 10,000 patched functions costs, with stubs made by hand: see README.md beside this.
// Build and run: gcc -O2 walk.c -o walk && ./walk   (x86-64, glibc 2.35 or later)
//
// Memory of each variant: functions (T) 16 bytes apart, the mirrored range (L) with a jump for each of them, stubs (A), counters (C).
// Variants: no patch; the stub in one piece; a shared routine that counts, called by short stubs; the stub with what hits do not run
// apart, and two registers; a locked add alone. Rounds take turns; each is the best of 20 walks.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/rseq.h>
#include <time.h>
#define N 10000
typedef uint8_t u8;
static u8 *T,*L,*A,*C; // text, landing, arena, counters
static u8 *p;
static void b(int n,...){__builtin_va_list a;__builtin_va_start(a,n);while(n--)*p++=(u8)__builtin_va_arg(a,int);__builtin_va_end(a);}
static void i32(int64_t v){int32_t x=v;memcpy(p,&x,4);p+=4;}
static void rel(u8*t){i32(t-(p+4));}
static int off; static int lines=5;
static void fsstore_r11(int d){b(1,0x64);b(4,0x4c,0x89,0x1c,0x25);i32(d);}
static void fsload32_r11(int d){b(5,0x64,0x44,0x8b,0x1c,0x25);i32(d);}
static void fsload32_r10(int d){b(5,0x64,0x44,0x8b,0x14,0x25);i32(d);}
static void fsstore_r10(int d){b(1,0x64);b(4,0x4c,0x89,0x14,0x25);i32(d);}
static void fsclear(int d){b(5,0x64,0x48,0xc7,0x04,0x25);i32(d);i32(0);}
int main(int c,char**v){
  off=__rseq_offset;
  size_t M=64<<20;
  u8*base=mmap((void*)0x200000000,M,7,MAP_PRIVATE|MAP_ANONYMOUS|MAP_FIXED_NOREPLACE,-1,0);
  int variants=5; double best[5][64]; 
  void (**tab)(void)=malloc(N*8*variants);
  for(int k=0;k<variants;k++){
    T=base+k*(8<<20); L=T+(1<<20); A=T+(2<<20); C=T+(6<<20);
    u8*arena=A; 
    u8*shared=0;
    if(k==2||k==4){ p=A; shared=p; 
      u8*desc=p+256; b(3,0x4c,0x8d,0x15); rel(desc); fsstore_r10(off+8); u8*st=p; fsload32_r10(off+4); b(4,0x41,0x83,0xfa,lines-1); b(2,0x0f,0x83); rel(p+60); b(4,0x41,0xc1,0xe2,6); b(5,0x4b,0x83,0x04,0x13,1); u8*en=p; fsclear(off+8); b(1,0xc3);
      uint64_t d[4]={0,(uint64_t)st,(uint64_t)(en-st),(uint64_t)(desc-32)}; memcpy(desc,d,32); p=desc-36; i32(RSEQ_SIG); b(1,0xe9); rel(shared); arena=A+512; }
    for(int n=0;n<N;n++){
      u8*f=T+n*16,*word=C+(n/8)*64*lines+(n%8)*8; tab[k*N+n]=(void*)f;
      p=f;
      if(k==0){ b(6,0x55,0x48,0x89,0xe5,0x5d,0xc3); continue; }
      u8*back=f+5;
      u8*land=L+n*16;
      b(1,0xe9); rel(land); b(1,0xc3);
      int inplace=0;
      p=land; b(1,0xe9); u8*fix=p; p+=4;
      u8*s=(u8*)(((uintptr_t)arena+ (k==1||k==3?15:0))&~(uintptr_t)(k==1||k==3?15:0));
      p=fix; rel(s); p=s;
      if(k==1){ // current
        u8*desc=(u8*)(((uintptr_t)s+110+31)&~31ul), *ptr=desc+32;
        b(3,0x4c,0x8d,0x1d); rel(desc); fsstore_r11(off+8); u8*st=p; fsload32_r11(off+4); b(4,0x41,0x83,0xfb,lines-1); b(2,0x0f,0x83); u8*un=p; p+=4; b(4,0x41,0xc1,0xe3,6); b(3,0x4c,0x03,0x1d); rel(ptr); b(4,0x49,0x83,0x03,1); u8*en=p; fsclear(off+8); u8*cont=p;
        b(5,0x55,0x48,0x89,0xe5,0x5d); b(1,0xe9); rel(back);
        u8*q=p; p=un; rel(q); p=q; b(5,0xf0,0x48,0x83,0x05,0); p--; i32(0); b(1,1); b(1,0xe9); rel(cont);
        i32(RSEQ_SIG); u8*ab=p; b(1,0xe9); rel(s);
        if(p>desc){puts("desc");exit(1);}
        uint64_t d[5]={0,(uint64_t)st,(uint64_t)(en-st),(uint64_t)ab,(uint64_t)word}; memcpy(desc,d,40); arena=desc+40;
      } else if(k==3){ // inline, two registers, cold parts elsewhere (1 MB behind)
        u8*desc=A+(2<<20)+n*64;
        b(3,0x4c,0x8d,0x1d); rel(desc); fsstore_r11(off+8); u8*st=p; fsload32_r11(off+4); b(4,0x41,0x83,0xfb,lines-1); b(2,0x0f,0x83); u8*un=p; p+=4; b(4,0x41,0xc1,0xe3,6); b(3,0x4c,0x8d,0x15); rel(word); b(5,0x4b,0x83,0x04,0x13,1); u8*en=p; fsclear(off+8);
        b(5,0x55,0x48,0x89,0xe5,0x5d); b(1,0xe9); rel(back); arena=p;
        u8*q=p; p=un; rel(desc+56); p=desc+40; i32(RSEQ_SIG); b(1,0xe9); rel(s); uint64_t d[4]={0,(uint64_t)st,(uint64_t)(en-st),(uint64_t)(desc+44)}; memcpy(desc,d,32); p=q;
      } else { // dense call; k==4: lea in landing? (landing holds lea+jmp)
        if(k==2){ b(3,0x4c,0x8d,0x1d); rel(word); b(1,0xe8); rel(shared); b(5,0x55,0x48,0x89,0xe5,0x5d); b(1,0xe9); rel(back); arena=p; }
        else { b(3,0x4c,0x8d,0x1d); rel(word); b(6,0xf0,0x49,0x83,0x03,1,0x90); p--; b(5,0x55,0x48,0x89,0xe5,0x5d); b(1,0xe9); rel(back); arena=p; }
      }
    }
  }
  int rounds=40;
  for(int r=0;r<rounds;r++) for(int k=0;k<variants;k++){
    void(**t)(void)=tab+k*N; for(int w=0;w<3;w++) for(int n=0;n<N;n++) t[n]();
    struct timespec a,e; double m=1e9; for(int w=0;w<20;w++){ clock_gettime(CLOCK_MONOTONIC,&a); for(int n=0;n<N;n++) t[n](); clock_gettime(CLOCK_MONOTONIC,&e); double x=((e.tv_sec-a.tv_sec)*1e9+e.tv_nsec-a.tv_nsec)/N; if(x<m)m=x;} best[k][r]=m; }
  const char*nm[]={"bare","current","dense call","inline, cold apart","lock add (lea)"};
  for(int k=0;k<variants;k++){ double m=1e9,s[64]; memcpy(s,best[k],sizeof s); for(int i=0;i<rounds;i++)for(int j=i+1;j<rounds;j++)if(s[j]<s[i]){double x=s[i];s[i]=s[j];s[j]=x;} printf("%-20s min %.2f med %.2f ns\n",nm[k],s[0],s[rounds/2]); }
  uint64_t sum=0; for(int n=0;n<N;n++){u8*w=base+2*(8<<20)+(6<<20)+(n/8)*64*lines+(n%8)*8; for(int l=0;l<lines;l++) sum+=*(uint64_t*)(w+l*64);} printf("dense sum %lu expect %lu\n",sum,(unsigned long)N*rounds*23);
}
