import subprocess,sys,statistics
# drive.py ROUNDS MS CASE THREADS SHARING bin=name ...
rounds,ms,case,threads,sharing=int(sys.argv[1]),int(sys.argv[2]),sys.argv[3],sys.argv[4],sys.argv[5]
bins=[a.split('=') for a in sys.argv[6:]]
hows=['none','return','return-slot','session']
class V:
    def __init__(s,b):
        s.p=subprocess.Popen([b,'victim'],stdin=subprocess.PIPE,stdout=subprocess.PIPE,text=True); assert s.p.stdout.readline().strip()=='ready'
    def ask(s,l):
        s.p.stdin.write(l+'\n'); s.p.stdin.flush(); return s.p.stdout.readline().strip()
vs={}
for n,b in bins:
    for h in hows:
        v=V(b); vs[n,h]=v
        if h!='none':
            r=v.ask(f'probe {case} 4 {h}')
            try: float(r)
            except: print('cannot',n,h,r); del vs[n,h]
t={k:[] for k in vs}
for r in range(rounds):
    for k,v in vs.items(): t[k].append(float(v.ask(f'{case} {threads} {sharing} plain {ms}')))
for k in vs:
    l=sorted(t[k]); print(f'{case} {threads}T {k[0]:5} {k[1]:12} least {l[0]:.2f} quartile {l[len(l)//4]:.2f} median {statistics.median(l):.2f} upper {l[3*len(l)//4]:.2f}   least added {l[0]-min(t[k[0],"none"]):.2f} median added {statistics.median(l)-statistics.median(t[k[0],"none"]):.2f}')
for v in vs.values(): v.p.stdin.close(); v.p.wait()
