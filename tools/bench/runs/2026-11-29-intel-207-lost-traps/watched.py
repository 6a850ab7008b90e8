import subprocess,sys,time,signal
n,nb=sys.argv[1],sys.argv[2]; extra=sys.argv[3:]
p=subprocess.Popen(['./writer',n,nb],stdin=subprocess.PIPE,stdout=subprocess.PIPE,text=True)
p.stdout.readline()
t=subprocess.Popen(['trapline','watch','--count','-p',str(p.pid),'cell']+extra,stdout=subprocess.PIPE,stderr=subprocess.STDOUT,text=True)
time.sleep(2)
p.stdin.write('\n');p.stdin.flush()
print(p.stdout.readline().strip(), p.poll())
t.send_signal(signal.SIGINT); print(t.communicate()[0])
try: p.stdin.write('\n');p.stdin.flush()
except Exception as e: pass
print('victim',p.wait())
