import subprocess,re,sys,statistics,os,time,signal
# attach.py PROBES PID COMMAND...: how long each command takes to attach, from its own closing lines
pat,pid=sys.argv[1],sys.argv[2]; bins=sys.argv[3:]
res={}
for i in range(int(os.environ.get("ROUNDS", 7))):
    for b in bins:
        for v in ("count","lat","trace"):
            e=subprocess.run([b,v,"-d","0.001","-p",pid,"--json","-o","/dev/null",pat],capture_output=True,text=True).stderr
            m=re.search(r"attach ([\d.]+) (ms|s)",e)
            if not m: print(e[-500:]); sys.exit(1)
            t=float(m[1])*(1 if m[2]=="s" else 1e-3)
            res.setdefault((b,v),[]).append(t)
for (b,v),l in res.items(): print(os.path.basename(b),v,"median %.3f"%statistics.median(l),"min %.2f max %.2f"%(min(l),max(l)), "ratio %.2f"%(statistics.median(l)/statistics.median(res[(b,"count")]))); print("  raw",l)
