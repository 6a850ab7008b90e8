#include <spawn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
extern char **environ;
int main(int c,char**v){ int n=atoi(v[1]), bad=0; struct timespec a,b; clock_gettime(1,&a); for(int i=0;i<n;i++){ int p,s; char*w[]={"./brief",0}; posix_spawn(&p,w[0],0,0,w,environ); waitpid(p,&s,0); bad+=s!=0; } clock_gettime(1,&b); printf("%d runs, %d bad, %.3f ms each\n", n,bad,((b.tv_sec-a.tv_sec)*1e3+(b.tv_nsec-a.tv_nsec)/1e6)/n); }
