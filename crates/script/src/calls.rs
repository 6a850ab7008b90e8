//! The table of builtins and functions: names, arguments, results, and what each one is.
//!
//! In: a name. Out: its row. The checker, the interpreter, listings and suggestions all read this table, so a function
//! is known to all of them or to none. Does not: compute anything.

use crate::types::Sum;

/// What an argument must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arg {
    /// Anything that has a value.
    Any,
    /// A number.
    Int,
    /// A number that is known before the script runs.
    Number,
    /// A text.
    Text,
    /// A text in quotes.
    Literal,
    /// A number or a pointer.
    Address,
    /// A map, without its key.
    Map,
    /// A map without its key, or any value.
    Shown,
    /// A text in quotes that says how the arguments behind it are written.
    Format,
    /// One of these words.
    Word(&'static [&'static str]),
    /// A mode or a depth of a stack.
    Mode,
    /// The name of a variable, which is assigned.
    Variable,
}

/// What a call results in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gives {
    Nothing,
    Bool,
    Int(u8),
    Uint(u8),
    /// A text of at most so many bytes.
    Text(u32),
    /// A text as long as `max_strlen` allows.
    LongText,
    Buffer,
    Stack,
    Symbol,
    Inet,
    Mac,
    Time,
    User,
    Cgroup,
    Sum(Sum),
    /// What the first argument is.
    Same,
    /// The checker finds out.
    Own,
}

/// What a row of the table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meaning {
    /// The number of a process, thread, user, group or child.
    Pid,
    /// The thread.
    Tid,
    /// The user.
    Uid,
    /// The group of the user.
    Gid,
    /// The child that `-c` began.
    Cpid,
    /// The name of the thread.
    Comm,
    /// The time, by the clock that the first argument names.
    Nsecs,
    /// The time since the script began.
    Elapsed,
    /// The number of the CPU.
    Cpu,
    /// How many CPUs there are.
    Ncpus,
    /// The number of the NUMA node.
    Numaid,
    /// A random number.
    Rand,
    /// The function at whose probe the block runs.
    Func,
    /// The name of the probe.
    Probe,
    /// The sort of probe.
    Probetype,
    /// The name of the user.
    Username,
    /// What the function returned.
    Retval,
    /// All parameters of the function, by their names.
    Args,
    /// An argument of the function.
    Argument(u8),
    /// A stack.
    Ustack,
    /// A stack of a program that keeps no frame pointers.
    DwUstack,
    /// Whether the program, and not the kernel, was hit.
    Usermode,
    /// The control group.
    Cgroup,
    /// The kernel's ticks.
    Jiffies,
    /// The parent process.
    Ppid,
    /// The name of the parent process.
    Pcomm,
    /// The name of the first thread of the process.
    LeaderComm,
    /// Writes by a format.
    Printf,
    /// Writes an error by a format.
    Errorf,
    /// Writes a warning by a format.
    Warnf,
    /// Writes a value or a map.
    Print,
    /// Empties a map.
    Clear,
    /// Sets all values of a map to zero.
    Zero,
    /// Removes a key.
    Delete,
    /// Whether a map has a key.
    HasKey,
    /// Reads a key into a variable, if it is there.
    Find,
    /// How many keys a map, or frames a stack, has.
    Len,
    /// The text at an address.
    Str,
    /// The bytes at an address.
    Buf,
    /// The symbol of an address.
    Usym,
    /// A moment as text.
    Strftime,
    /// Writes the present time.
    Time,
    /// Writes a file.
    Cat,
    /// Writes texts with something between them.
    Join,
    /// An address of the network as text.
    Ntop,
    /// An address of the network from text.
    Pton,
    /// An address of a network card as text.
    Macaddr,
    /// Ends the script.
    Exit,
    /// Runs a command.
    System,
    /// Sends the thread's process a signal.
    Signal,
    /// The text of an error number.
    Strerror,
    /// The text of a signal.
    SignalName,
    /// Ends the script unless a condition holds.
    Assert,
    /// Compares the first bytes of texts.
    Strncmp,
    /// Whether a text contains another.
    Strcontains,
    /// Where a text contains another.
    Strstr,
    /// How long a text is.
    Strlen,
    /// Two texts, one behind the other.
    StrConcat,
    /// The bytes of a number in reverse.
    Bswap,
    /// A control group by its number.
    CgroupPath,
    /// A parameter by name.
    Getopt,
    /// Whether a pointer is an error number.
    IsErr,
    /// Marks an address as one of the program.
    Uptr,
    /// The containing structure of a field.
    ContainerOf,
    /// An error of the script's own, before it runs.
    Fail,
    /// Settings.
    Config,
    /// A register.
    Reg,
    /// The address of a variable.
    Uaddr,
    /// Adds up.
    Sum(Sum),
    /// Is known, and refused; see `REFUSED`.
    Refused,
}

/// A builtin or function.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    pub(crate) args: &'static [Arg],
    /// How many arguments it has at least. With none, the brackets may be missing.
    pub(crate) least: usize,
    pub(crate) gives: Gives,
    pub(crate) meaning: Meaning,
}

const fn row(
    name: &'static str,
    least: usize,
    args: &'static [Arg],
    gives: Gives,
    meaning: Meaning,
) -> Function {
    Function { name, args, least, gives, meaning }
}

const CLOCKS: &[&str] = &["monotonic", "boot", "tai", "sw_tai"];
const SPACES: &[&str] = &["curr_ns", "init"];

use Arg::{Address, Any, Format, Int, Literal, Map, Mode, Number, Shown, Text, Variable, Word};

/// All builtins and functions.
#[rustfmt::skip]
pub(crate) static FUNCTIONS: &[Function] = &[
    row("pid", 0, &[Word(SPACES)], Gives::Uint(4), Meaning::Pid),
    row("tid", 0, &[Word(SPACES)], Gives::Uint(4), Meaning::Tid),
    row("uid", 0, &[], Gives::Uint(8), Meaning::Uid),
    row("gid", 0, &[], Gives::Uint(8), Meaning::Gid),
    row("cpid", 0, &[], Gives::Uint(8), Meaning::Cpid),
    row("comm", 0, &[], Gives::Text(16), Meaning::Comm),
    row("nsecs", 0, &[Word(CLOCKS)], Gives::Uint(8), Meaning::Nsecs),
    row("elapsed", 0, &[], Gives::Uint(8), Meaning::Elapsed),
    row("cpu", 0, &[], Gives::Uint(8), Meaning::Cpu),
    row("ncpus", 0, &[], Gives::Uint(8), Meaning::Ncpus),
    row("numaid", 0, &[], Gives::Uint(8), Meaning::Numaid),
    row("rand", 0, &[], Gives::Uint(4), Meaning::Rand),
    row("func", 0, &[], Gives::Text(1024), Meaning::Func),
    row("probe", 0, &[], Gives::Text(1024), Meaning::Probe),
    row("probetype", 0, &[], Gives::Text(16), Meaning::Probetype),
    row("username", 0, &[], Gives::User, Meaning::Username),
    row("retval", 0, &[], Gives::Uint(8), Meaning::Retval),
    row("arg0", 0, &[], Gives::Int(8), Meaning::Argument(0)),
    row("arg1", 0, &[], Gives::Int(8), Meaning::Argument(1)),
    row("arg2", 0, &[], Gives::Int(8), Meaning::Argument(2)),
    row("arg3", 0, &[], Gives::Int(8), Meaning::Argument(3)),
    row("arg4", 0, &[], Gives::Int(8), Meaning::Argument(4)),
    row("arg5", 0, &[], Gives::Int(8), Meaning::Argument(5)),
    row("arg6", 0, &[], Gives::Int(8), Meaning::Argument(6)),
    row("arg7", 0, &[], Gives::Int(8), Meaning::Argument(7)),
    row("arg8", 0, &[], Gives::Int(8), Meaning::Argument(8)),
    row("arg9", 0, &[], Gives::Int(8), Meaning::Argument(9)),
    row("arg10", 0, &[], Gives::Int(8), Meaning::Argument(10)),
    row("arg11", 0, &[], Gives::Int(8), Meaning::Argument(11)),
    row("args", 0, &[], Gives::Own, Meaning::Args),
    row("ustack", 0, &[Mode, Mode], Gives::Stack, Meaning::Ustack),
    row("dw_ustack", 0, &[Mode, Mode], Gives::Stack, Meaning::DwUstack),
    row("usermode", 0, &[], Gives::Uint(1), Meaning::Usermode),
    row("cgroup", 0, &[], Gives::Uint(8), Meaning::Cgroup),
    row("jiffies", 0, &[], Gives::Uint(8), Meaning::Jiffies),
    row("ppid", 0, &[], Gives::Int(4), Meaning::Ppid),
    row("pcomm", 0, &[], Gives::Text(16), Meaning::Pcomm),
    row("leader_comm", 0, &[], Gives::Text(16), Meaning::LeaderComm),
    row("printf", 1, &[Format], Gives::Nothing, Meaning::Printf),
    row("errorf", 1, &[Format], Gives::Nothing, Meaning::Errorf),
    row("warnf", 1, &[Format], Gives::Nothing, Meaning::Warnf),
    row("print", 1, &[Shown, Number, Number], Gives::Nothing, Meaning::Print),
    row("clear", 1, &[Map], Gives::Nothing, Meaning::Clear),
    row("zero", 1, &[Map], Gives::Nothing, Meaning::Zero),
    row("delete", 1, &[Shown, Any], Gives::Bool, Meaning::Delete),
    row("has_key", 2, &[Map, Any], Gives::Bool, Meaning::HasKey),
    row("find", 3, &[Map, Any, Variable], Gives::Bool, Meaning::Find),
    row("len", 1, &[Shown], Gives::Int(8), Meaning::Len),
    row("str", 1, &[Any, Int], Gives::LongText, Meaning::Str),
    row("buf", 1, &[Any, Int], Gives::Buffer, Meaning::Buf),
    row("usym", 1, &[Address], Gives::Symbol, Meaning::Usym),
    row("strftime", 2, &[Literal, Int], Gives::Time, Meaning::Strftime),
    row("time", 0, &[Literal], Gives::Nothing, Meaning::Time),
    row("cat", 1, &[Format], Gives::Nothing, Meaning::Cat),
    row("join", 1, &[Address, Literal], Gives::Nothing, Meaning::Join),
    row("ntop", 1, &[Any, Any], Gives::Inet, Meaning::Ntop),
    row("pton", 1, &[Literal], Gives::Own, Meaning::Pton),
    row("macaddr", 1, &[Any], Gives::Mac, Meaning::Macaddr),
    row("exit", 0, &[Int], Gives::Nothing, Meaning::Exit),
    row("system", 1, &[Format], Gives::Nothing, Meaning::System),
    row("signal", 1, &[Any], Gives::Nothing, Meaning::Signal),
    row("strerror", 1, &[Int], Gives::Text(64), Meaning::Strerror),
    row("signal_name", 1, &[Int], Gives::Text(64), Meaning::SignalName),
    row("assert", 2, &[Any, Text], Gives::Nothing, Meaning::Assert),
    row("strncmp", 3, &[Text, Text, Int], Gives::Uint(8), Meaning::Strncmp),
    row("strcontains", 2, &[Text, Text], Gives::Bool, Meaning::Strcontains),
    row("strstr", 2, &[Text, Text], Gives::Int(8), Meaning::Strstr),
    row("strlen", 1, &[Text], Gives::Uint(8), Meaning::Strlen),
    row("str_concat", 2, &[Text, Text], Gives::LongText, Meaning::StrConcat),
    row("bswap", 1, &[Int], Gives::Own, Meaning::Bswap),
    row("cgroup_path", 1, &[Int, Literal], Gives::Cgroup, Meaning::CgroupPath),
    row("getopt", 1, &[Literal, Any, Literal], Gives::Own, Meaning::Getopt),
    row("is_err", 1, &[Address], Gives::Bool, Meaning::IsErr),
    row("uptr", 1, &[Address], Gives::Same, Meaning::Uptr),
    row("container_of", 3, &[Any, Any, Any], Gives::Own, Meaning::ContainerOf),
    row("fail", 1, &[Format], Gives::Nothing, Meaning::Fail),
    row("config", 0, &[], Gives::Own, Meaning::Config),
    row("reg", 1, &[Literal], Gives::Uint(8), Meaning::Reg),
    row("uaddr", 1, &[Literal], Gives::Own, Meaning::Uaddr),
    row("count", 0, &[], Gives::Sum(Sum::Count), Meaning::Sum(Sum::Count)),
    row("sum", 1, &[Int], Gives::Sum(Sum::Total), Meaning::Sum(Sum::Total)),
    row("avg", 1, &[Int], Gives::Sum(Sum::Avg), Meaning::Sum(Sum::Avg)),
    row("min", 1, &[Int], Gives::Sum(Sum::Min), Meaning::Sum(Sum::Min)),
    row("max", 1, &[Int], Gives::Sum(Sum::Max), Meaning::Sum(Sum::Max)),
    row("stats", 1, &[Int], Gives::Sum(Sum::Stats), Meaning::Sum(Sum::Stats)),
    row("hist", 1, &[Int, Number], Gives::Sum(Sum::Hist), Meaning::Sum(Sum::Hist)),
    row("lhist", 4, &[Int, Number, Number, Number], Gives::Sum(Sum::Lhist), Meaning::Sum(Sum::Lhist)),
    row("tseries", 3, &[Int, Number, Number, Literal], Gives::Sum(Sum::Tseries), Meaning::Sum(Sum::Tseries)),
    row("curtask", 0, &[], Gives::Own, Meaning::Refused),
    row("ctx", 0, &[], Gives::Own, Meaning::Refused),
    row("kstack", 0, &[Mode, Mode], Gives::Stack, Meaning::Refused),
    row("ksym", 1, &[Any], Gives::Own, Meaning::Refused),
    row("kaddr", 1, &[Any], Gives::Own, Meaning::Refused),
    row("kptr", 1, &[Any], Gives::Own, Meaning::Refused),
    row("percpu_kaddr", 1, &[Any, Any], Gives::Own, Meaning::Refused),
    row("path", 1, &[Any, Any], Gives::Own, Meaning::Refused),
    row("skboutput", 4, &[Any, Any, Any, Any], Gives::Own, Meaning::Refused),
    row("socket_cookie", 1, &[Any], Gives::Own, Meaning::Refused),
    row("override", 1, &[Any], Gives::Own, Meaning::Refused),
    row("write_user", 3, &[Any, Any, Any], Gives::Own, Meaning::Refused),
    row("debugf", 1, &[Format], Gives::Own, Meaning::Refused),
    row("unwatch", 1, &[Any], Gives::Own, Meaning::Refused),
    row("sarg0", 0, &[], Gives::Own, Meaning::Refused),
];

/// Why a function is refused, and what to use instead.
pub(crate) const REFUSED: &[(&str, &str)] = &[
    ("arg", "records hold arg0 to arg11"),
    ("curtask", "it belongs to the kernel; use pid, tid, comm"),
    ("ctx", "it belongs to the kernel; use arg0 to arg5 or retval"),
    ("kstack", "programs are probed, not the kernel; use ustack"),
    ("ksym", "programs are probed, not the kernel; use usym"),
    ("kaddr", "programs are probed, not the kernel"),
    ("kptr", "programs are probed, not the kernel"),
    ("percpu_kaddr", "programs are probed, not the kernel"),
    ("path", "it belongs to the kernel; use str of the path that the function is given"),
    ("skboutput", "it belongs to the kernel"),
    ("socket_cookie", "it belongs to the kernel"),
    ("override", "a script does not change programs"),
    ("write_user", "a script does not change programs"),
    ("debugf", "use printf, or warnf for standard error"),
    ("unwatch", "a watchpoint stays until the script ends"),
    ("sarg", "use arg0 to arg5"),
];

/// The row of a name. A name may have the prefix by which bpftrace's own library calls builtins.
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    let name = name.strip_prefix("__builtin_").unwrap_or(name);
    FUNCTIONS.iter().find(|function| function.name == name)
}

/// Why a function is refused.
pub(crate) fn reason(name: &str) -> &'static str {
    let digits = |letter: char| letter.is_ascii_digit();
    let is = |row: &str| row == name || row == name.trim_end_matches(digits);
    REFUSED.iter().find(|(row, _)| is(row)).map_or("it is not supported", |(_, reason)| reason)
}

#[cfg(test)]
mod tests {
    use super::{FUNCTIONS, Meaning, find, reason};

    #[test]
    fn every_refused_function_has_its_reason() {
        for function in FUNCTIONS.iter().filter(|function| function.meaning == Meaning::Refused) {
            assert_ne!(reason(function.name), "it is not supported", "{}", function.name);
        }
    }

    #[test]
    fn names_are_unique_and_found() {
        for function in FUNCTIONS {
            let found = find(function.name).expect("a row");
            assert!(std::ptr::eq(found, function), "{} is there twice", function.name);
            assert!(function.least <= function.args.len(), "{}", function.name);
        }
        assert!(find("__builtin_comm").is_some());
        assert!(find("nothing").is_none());
    }
}
