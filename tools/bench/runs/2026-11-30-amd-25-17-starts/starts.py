import subprocess,time,sys,os,signal
def ready(pid):
    try:
        for f in os.listdir(f"/proc/{pid}/fdinfo"):
            try:
                if "fanotify ino:" in open(f"/proc/{pid}/fdinfo/{f}").read(): return True
            except OSError: pass
    except OSError: pass
    return False
probe=sys.argv[1]
def seq(n=60):
    t=time.time()
    for _ in range(n): subprocess.run(["/usr/bin/true"])
    return (time.time()-t)/n*1000
def par(n=60):
    t=time.time(); ps=[subprocess.Popen(["/usr/bin/true"]) for _ in range(n)]; [p.wait() for p in ps]; return (time.time()-t)/n*1000
for r in range(3):
    print("bare seq %.2f par %.2f"%(seq(),par()))
    for b in sys.argv[2:]:
        t=subprocess.Popen([b,"count","--all","--tree",str(os.getpid()),"-q",probe],stdout=subprocess.DEVNULL,stderr=subprocess.PIPE,text=True)
        while not ready(t.pid): time.sleep(.01)
        time.sleep(1)
        s,p=seq(),par()
        t.send_signal(signal.SIGINT); _,e=t.communicate()
        print(b[-40:],"seq %.2f ms par %.2f ms"%(s,p), [l for l in e.split("\n") if "hits:" in l or "processes" in l][:2], sum("note" in l for l in e.split("\n")))
