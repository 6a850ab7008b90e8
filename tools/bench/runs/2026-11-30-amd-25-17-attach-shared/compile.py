import resource, statistics, subprocess, sys, time
# compile.py OLD NEW: seconds that cc1plus takes for a file, bare and with all of its functions probed by each command
C = ['/usr/lib/gcc/x86_64-linux-gnu/12/cc1plus', '-quiet', '-imultiarch', 'x86_64-linux-gnu', '-D_GNU_SOURCE', '-O2', 'big.cpp', '-o', '/dev/null']
rows = {}
for _ in range(5):
    for name, command in [('bare', C)] + [(f'{build} {verb}', [build, verb, '--json', '-o', '/dev/null', 'cc1plus:*', '--'] + C)
                                          for verb in ('count', 'lat') for build in sys.argv[1:]]:
        begun = time.time()
        subprocess.run(command, capture_output=True)
        rows.setdefault(name, []).append(time.time() - begun)
for name, all in rows.items():
    print(name, 'median %.2f' % statistics.median(all), ['%.2f' % one for one in all])
