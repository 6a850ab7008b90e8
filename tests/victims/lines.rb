# Runs each line that it reads, and answers it.
$stdout.sync = true
puts "ready"
$stdin.each_line do |line|
  eval(line, TOPLEVEL_BINDING, "lines", 1)
  puts "done"
end
