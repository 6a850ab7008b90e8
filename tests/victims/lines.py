# Runs each line that it reads, and answers it. A line may hold several, with \n between them.
# What a line prints comes before the answer.
import sys

print("ready", flush=True)
for line in sys.stdin:
    exec(line.replace("\\n", "\n"))
    print("done", flush=True)
