//! Settings: `config = { … }` in the script, and `BPFTRACE_…` in the environment, which takes precedence.
//!
//! In: names and values. Out: [`Config`], or what is wrong. All known names are in one table; those that only matter to
//! a kernel are accepted and do nothing. Does not: read the environment.

/// All settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Most bytes of a text.
    pub max_strlen: u32,
    /// Most keys of a map.
    pub max_map_keys: usize,
    /// Most bytes that `cat` writes.
    pub max_cat_bytes: u64,
    /// Whether maps are written at the end.
    pub print_maps_on_exit: bool,
    /// What follows a text that was cut off.
    pub str_trunc_trailer: String,
    /// How stacks are written.
    pub stack_mode: String,
    /// Whether stacks have source lines and inlined functions.
    pub show_debug_info: bool,
    /// What happens if a probe is not there: `error`, `warn` or `ignore`.
    pub missing_probes: String,
    /// Whether C++ names are shown as they were written.
    pub cpp_demangle: bool,
    /// What happens if a script uses `tseries`: `error`, `warn` or `enable`.
    pub unstable_tseries: String,
    /// The licence, which must be one that bpftrace accepts.
    pub license: String,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_strlen: 1024,
            max_map_keys: 4096,
            max_cat_bytes: 10240,
            print_maps_on_exit: true,
            str_trunc_trailer: "..".to_owned(),
            stack_mode: "bpftrace".to_owned(),
            show_debug_info: true,
            missing_probes: "error".to_owned(),
            cpp_demangle: true,
            unstable_tseries: "warn".to_owned(),
            license: "GPL".to_owned(),
        }
    }
}

/// Most bytes that a text may be set to have.
const MOST_TEXT: u64 = 1 << 20;

const LICENSES: [&str; 6] =
    ["Dual MIT/GPL", "Dual BSD/GPL", "Dual MPL/GPL", "GPL and additional rights", "GPL v2", "GPL"];

/// Settings that only matter to a kernel, or to how much memory is used.
const WITHOUT_EFFECT: [&str; 11] = [
    "cache_user_symbols",
    "lazy_symbolication",
    "log_size",
    "max_bpf_progs",
    "max_probes",
    "on_stack_limit",
    "perf_rb_pages",
    "max_type_res_iterations",
    "unstable_dw_ustack",
    "unstable_import",
    "probe_inline",
];

type Set = fn(&mut Config, &str) -> Result<(), String>;

/// Every setting that has an effect.
const SETTINGS: [(&str, Set); 11] = [
    ("max_strlen", |config, value| {
        config.max_strlen = number(value, MOST_TEXT)? as u32;
        Ok(())
    }),
    ("max_map_keys", |config, value| {
        config.max_map_keys = number(value, u64::from(u32::MAX))? as usize;
        Ok(())
    }),
    ("max_cat_bytes", |config, value| {
        config.max_cat_bytes = number(value, u64::MAX)?;
        Ok(())
    }),
    ("print_maps_on_exit", |config, value| {
        config.print_maps_on_exit = boolean(value)?;
        Ok(())
    }),
    ("cpp_demangle", |config, value| {
        config.cpp_demangle = boolean(value)?;
        Ok(())
    }),
    ("str_trunc_trailer", |config, value| {
        value.clone_into(&mut config.str_trunc_trailer);
        Ok(())
    }),
    ("stack_mode", |config, value| {
        config.stack_mode = one_of(value, &["bpftrace", "perf", "raw", "build_id"])?;
        Ok(())
    }),
    ("show_debug_info", |config, value| {
        config.show_debug_info = boolean(value)?;
        Ok(())
    }),
    ("missing_probes", |config, value| {
        config.missing_probes = one_of(value, &["error", "warn", "ignore"])?;
        Ok(())
    }),
    ("unstable_tseries", |config, value| {
        config.unstable_tseries = one_of(value, &["error", "warn", "enable"])?;
        Ok(())
    }),
    ("license", |config, value| {
        if !LICENSES.contains(&value) {
            let valid = LICENSES.join(", ");
            return Err(format!("Invalid value for license. Found: {value}. Valid values: {valid}."));
        }
        value.clone_into(&mut config.license);
        Ok(())
    }),
];

impl Config {
    /// Changes a setting by its name in any of its three spellings.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        let lower = name.to_ascii_lowercase();
        let short = lower.strip_prefix("bpftrace_").unwrap_or(&lower);
        if let Some((_, set)) = SETTINGS.iter().find(|(setting, _)| *setting == short) {
            return set(self, value).map_err(|message| match message.starts_with("Invalid value for") {
                true => message,
                false => format!("{short}: {message}"),
            });
        }
        match WITHOUT_EFFECT.contains(&short) {
            true => Ok(()),
            false => Err(format!("{name}: not a known configuration option")),
        }
    }
    /// A setting by name, as `config().name` reads it.
    pub(crate) fn get(&self, name: &str) -> Option<Setting<'_>> {
        Some(match name {
            "max_strlen" => Setting::Number(i64::from(self.max_strlen)),
            "max_map_keys" => Setting::Number(self.max_map_keys as i64),
            "max_cat_bytes" => Setting::Number(self.max_cat_bytes as i64),
            "print_maps_on_exit" => Setting::Bool(self.print_maps_on_exit),
            "cpp_demangle" => Setting::Bool(self.cpp_demangle),
            "str_trunc_trailer" => Setting::Text(&self.str_trunc_trailer),
            "stack_mode" => Setting::Text(&self.stack_mode),
            "show_debug_info" => Setting::Bool(self.show_debug_info),
            "missing_probes" => Setting::Text(&self.missing_probes),
            "license" => Setting::Text(&self.license),
            _ => return None,
        })
    }
    /// The names of all settings.
    pub(crate) fn names() -> impl Iterator<Item = &'static str> {
        SETTINGS.iter().map(|(name, _)| *name).chain(WITHOUT_EFFECT)
    }
}

/// A setting as a script reads it.
#[derive(Debug)]
pub(crate) enum Setting<'a> {
    Number(i64),
    Bool(bool),
    Text(&'a str),
}

fn number(value: &str, most: u64) -> Result<u64, String> {
    let number = value.parse().map_err(|_| format!("expecting a number, got {value}"))?;
    if number > most {
        return Err(format!("{number} is more than {most}"));
    }
    Ok(number)
}

fn boolean(value: &str) -> Result<bool, String> {
    truth(value).ok_or_else(|| "Invalid bool value: valid values are true, false, 1 or 0.".to_owned())
}

/// What a word says: yes or no.
pub(crate) fn truth(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "1" | "true" | "on" | "yes" => Some(true),
        "0" | "false" | "off" | "no" => Some(false),
        _ => None,
    }
}

fn one_of(value: &str, words: &[&str]) -> Result<String, String> {
    match words.contains(&value) {
        true => Ok(value.to_owned()),
        false => Err(format!("Invalid value: valid values are {}.", words.join(", "))),
    }
}
