import subprocess,time,random,os,signal,sys
B=sys.argv[1]; rounds=int(sys.argv[2]); probe=sys.argv[3] if len(sys.argv)>3 else "./k:*"
N=50; worst=0; bad=0; held_total=0; late=[]
random.seed(int(sys.argv[4]) if len(sys.argv)>4 else 1)
def ready(pid):
    try:
        for f in os.listdir(f"/proc/{pid}/fdinfo"):
            try:
                if "fanotify ino:" in open(f"/proc/{pid}/fdinfo/{f}").read(): return True
            except OSError: pass
    except OSError: pass
    return False
for r in range(rounds):
    t=subprocess.Popen([B,"count","--all",probe],stdout=subprocess.DEVNULL,stderr=subprocess.DEVNULL)
    while not ready(t.pid): time.sleep(.002)
    delay=random.uniform(0,0.35)
    rd,wr=os.pipe()
    # start them from a forked helper so exec waits do not hold us
    procs=[]; outs=[]
    begin=time.time()
    helper_r,helper_w=os.pipe()
    kids=[]
    for i in range(N):
        o_r,o_w=os.pipe(); i_r,i_w=os.pipe()
        pid=os.fork()
        if pid==0:
            os.dup2(i_r,0); os.dup2(o_w,1)
            os.closerange(3,1000)
            os.execv("./k",["k"])
        os.close(o_w); os.close(i_r); kids.append((pid,o_r,i_w))
    os.set_blocking
    left=delay-(time.time()-begin)
    if left>0: time.sleep(left)
    # how many are already past main?
    import select
    done=len(select.select([o for _,o,_ in kids],[],[],0)[0])
    t.send_signal(signal.SIGKILL); t.wait(); k=time.time()
    last=0
    for pid,o,i in kids:
        c=os.read(o,1); last=max(last,time.time()-k)
        if c!=b"a": bad+=1; print("round",r,"no output")
        os.write(i,b"x")
    for pid,o,i in kids:
        _,st=os.waitpid(pid,0)
        if st!=0: bad+=1; print("round",r,"status",st,flush=True)
        os.close(o); os.close(i)
    os.close(rd);os.close(wr);os.close(helper_r);os.close(helper_w)
    held_total+=N-done; late.append(last); worst=max(worst,last)
    if last>1: print("round",r,"last went on after %.2f s; %d were through at the kill, delay %.3f"%(last,done,delay),flush=True)
late.sort()
print("rounds",rounds,"bad",bad,"held or not yet through at the kill",held_total,"worst %.3f median %.3f"%(worst,late[len(late)//2]))
