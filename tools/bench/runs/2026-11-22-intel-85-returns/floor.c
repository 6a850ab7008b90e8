#include <stdio.h>
#include <stdlib.h>
#include <time.h>
extern void loop(unsigned long, void (*)(void));
void f_bare(void), f_jump(void), f_ret(void), f_pair(void);
static double now(void){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1e9+t.tv_nsec;}
static int cmp(const void*a,const void*b){double x=*(double*)a,y=*(double*)b;return x<y?-1:x>y;}
int main(void){
  struct{const char*n;void(*f)(void);}k[]={{"bare",f_bare},{"jump",f_jump},{"ret",f_ret},{"pair",f_pair}};
  enum{R=41,N=20000};static double t[4][R];double c[R];
  for(int r=0;r<R;r++){
    for(int i=0;i<4;i++){double a=now();loop(N,k[i].f);t[i][r]=(now()-a)/N;}
    double a=now();unsigned long x=N*20;__asm__ volatile("1: dec %0; jnz 1b":"+r"(x));c[r]=(now()-a)/(N*20);
  }
  for(int i=0;i<4;i++){qsort(t[i],R,sizeof(double),cmp);printf("%-5s least %.2f quartile %.2f median %.2f ns\n",k[i].n,t[i][0],t[i][R/4],t[i][R/2]);}
  qsort(c,R,sizeof(double),cmp);printf("cycle least %.3f median %.3f ns\n",c[0],c[R/2]);
}
