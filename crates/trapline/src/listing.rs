//! Lists the places that probes mean, and how each would be reached: `list`, `--dry-run`.
//!
//! In: a target, requests. Out: a [`Listing`]. Files can be looked at without a process. Does not: patch.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use trapline_order::Order as _;
use trapline_patch::{AttachReport, Options, rehearse};
use trapline_plan::{ActionRequest, ProcessTraits, preview};
use trapline_record::addr::Bias;
use trapline_tracee::{Among, Process};

use crate::choose::{Chosen, choose};
use crate::declaration::{Declaration, NotesByFile};
use crate::error::Error;
use crate::files::{Files, ModuleFile};
use crate::form::Returns;
use crate::modules::{Module, is_short_name, mapped};
use crate::names::ProcessNames;
use crate::progress::Step;
use crate::report::{Refused, Tactic};
use crate::requests::{Requests, is_guarded, no_unwinder, refusals, tactics};
use crate::roots::{LIBRARIES, other_roots, usual};
use crate::session_request::{HitAction, SessionRequest};
use crate::sites::{NamedSite, NamedSites, miss_text};
use crate::target::{Several, Target, gone_notice, resolve};
use crate::to_load::ToLoad;
use crate::traced::may_deliver;
use crate::unwinders::{Unwinding, unwinding_now};

/// A function that a pattern matched, and what would be done with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// Process; `None` if only the file was looked at.
    pub pid: Option<u32>,
    /// `uprobe:PATH:func`.
    pub probe: String,
    /// The same for the function's other names.
    pub aliases: Vec<String>,
    /// Path of the file.
    pub file: String,
    /// Name of the function alone.
    pub function: String,
    /// Bytes from the start of the file to the function.
    pub offset: u64,
    /// Length of its main body in bytes.
    pub size: u64,
    /// How it would be reached, or why it would be refused.
    pub tactic: Result<Tactic, Refused>,
    /// How the ends of its calls would be seen: [`Returns::Exits`] or [`Returns::Stack`]. `None` if they
    /// would not be timed.
    pub returns: Option<Returns>,
    /// What it takes and returns, if that was asked for and is noted.
    pub declaration: Option<Declaration>,
}

/// Result of a listing.
#[derive(Debug, Default)]
pub struct Listing {
    /// Places found.
    pub listed: Vec<Listed>,
    /// Notices: what was not found, and files that were replaced.
    pub notices: Vec<String>,
}

/// Lists the places that the probes mean, and how each would be reached. `notes`: what files note of them is wanted too.
pub(crate) fn list(
    target: &Target,
    requested: &SessionRequest,
    mut notes: Option<NotesByFile>,
) -> Result<Listing, Error> {
    let mut files = Files::with(&requested.debug_folders, &requested.progress);
    let mut listing = Listing::default();
    let declared = &mut |file: &ModuleFile, place: &NamedSite| notes.as_mut()?.declaration(file, place);
    match target {
        Target::Running { .. } => {
            let processes = resolve(target, &requested.specs, &mut listing.notices)?;
            let mut several = Several::new(processes.len());
            let mut listed = processes.len();
            for process in processes {
                let pid = process.pid();
                let done = list_process(process, (&mut files, requested), declared, &mut listing);
                if several.one(pid, done)?.is_none() {
                    listing.notices.push(gone_notice(pid));
                    listed -= 1;
                }
            }
            several.end(listed)?;
        }
        Target::Launch(words) => {
            let program = words.first().map_or(OsStr::new(""), OsString::as_os_str);
            let missing = || no_file(&program.to_string_lossy(), "launched command");
            let program = find_program(program).ok_or_else(missing)?;
            list_files((&mut files, requested), Some(&ToLoad::new(program)), declared, &mut listing)?;
        }
        Target::Any => list_files((&mut files, requested), None, declared, &mut listing)?,
        Target::All(among) => {
            let requested = &with_files_of_containers(requested, among);
            list_files((&mut files, requested), None, declared, &mut listing)?;
        }
    }
    if listing.listed.is_empty() {
        return Err(Error::NoMatch { misses: listing.notices });
    }
    Ok(listing)
}

/// What a file notes of a place.
type Declared<'a> = &'a mut dyn FnMut(&ModuleFile, &NamedSite) -> Option<Declaration>;

fn list_process(
    process: Process,
    (files, requested): (&mut Files, &SessionRequest),
    declared: Declared<'_>,
    listing: &mut Listing,
) -> Result<(), Error> {
    let pid = process.pid();
    let maps = process.maps()?;
    let fresh = mapped(&process, &maps);
    let names = ProcessNames::of(&process)?;
    let chosen = choose(&process, names.shown(), files, requested, (&maps, &fresh), &mut HashMap::new());
    let Chosen { modules, places: NamedSites { found, refused, .. }, misses, notices } = chosen;
    if !found.is_empty() {
        requested.progress.say(Step::Planning { functions: found.len() });
        let go = modules.iter().any(|module| module.is_program && module.file.image.is_go());
        let faults_delivered = may_deliver(&process, requested, &mapped(&process, &maps), go);
        let options = Options { faults_delivered, ..requested.options };
        let requested = &SessionRequest { options, ..requested.clone() };
        let answers = rehearsed(&process, files, &modules, &found, requested)?;
        for (place, (tactic, returns)) in found.iter().zip(answers) {
            let declaration = declared(&modules[place.module].file, place);
            listing.listed.push(Listed {
                returns,
                declaration,
                ..listed(&modules, place, tactic, Some(pid))
            });
        }
    }
    for one in refused {
        listing.notices.push(format!("{}: {}", one.probe, one.reason));
    }
    listing.notices.extend(misses.into_iter().chain(notices));
    Ok(())
}

type Answer = (Result<Tactic, Refused>, Option<Returns>);

/// Answers that an attach would give for each place, and how the ends of its calls would be seen.
fn rehearsed(
    process: &Process,
    files: &mut Files,
    modules: &[Module],
    found: &[NamedSite],
    requested: &SessionRequest,
) -> Result<Vec<Answer>, Error> {
    let form = requested.form();
    let options = match form {
        Returns::Stack => match unwinding_now(process, files) {
            Ok(_) => Options { by_trampolines: true, ..requested.options },
            Err(why) => {
                return Ok(found.iter().map(|place| (Err(no_unwinder(place, &why)), None)).collect());
            }
        },
        Returns::Auto => {
            Options { or_trampolines: Unwinding::of_auto(process, files).is_ok(), ..requested.options }
        }
        Returns::Exits => requested.options,
    };
    let requested = SessionRequest { options, ..requested.clone() };
    let requests = Requests::new(modules, found, is_guarded(process, modules), requested.tick);
    let asked = requests.asked();
    let report = rehearse(process, &requests.request(&asked, requests.filters(), &requested))?;
    let armed: HashSet<u32> = report.armed.iter().copied().collect();
    let one = |(index, tactic): (u32, Result<Tactic, Refused>)| {
        let returns = match form {
            _ if !requested.hit_action.is_timed() => None,
            Returns::Auto if armed.contains(&index) => Some(Returns::Stack),
            Returns::Auto => Some(Returns::Exits),
            form => Some(form),
        };
        (tactic, returns)
    };
    Ok((0..).zip(answers(&report, found)).map(one).collect())
}

/// Answers that an attach would give for each place.
fn answers(report: &AttachReport, found: &[NamedSite]) -> Vec<Result<Tactic, Refused>> {
    let kernel = report.kernel.iter().map(|(_, site)| site.probe as usize);
    let by_kernel: HashSet<usize> = kernel.collect();
    let refused: HashMap<usize, Refused> = refusals(report, found).into_iter().collect();
    let tactics = tactics(report);
    let one = |(index, place): (u32, &NamedSite)| match tactics.get(&index) {
        Some(&tactic) => Ok(tactic),
        None if by_kernel.contains(&(index as usize)) => Ok(Tactic::Kernel),
        None => Err(refused.get(&(index as usize)).cloned().unwrap_or_else(|| Refused {
            probe: place.probe.clone(),
            kind: "other",
            reason: "no patch was planned for it".to_owned(),
        })),
    };
    (0u32..).zip(found).map(one).collect()
}

fn listed(
    modules: &[Module],
    place: &NamedSite,
    tactic: Result<Tactic, Refused>,
    pid: Option<u32>,
) -> Listed {
    let file = &modules[place.module].file;
    Listed {
        pid,
        probe: place.probe.clone(),
        aliases: place.aliases.clone(),
        file: file.path.clone(),
        function: place.label.clone(),
        offset: place.offset.0,
        size: place.function.map_or(0, |function| file.image.function(function).len),
        tactic,
        returns: None,
        declaration: None,
    }
}

fn list_files(
    (files, requested): (&mut Files, &SessionRequest),
    program: Option<&ToLoad>,
    declared: Declared<'_>,
    listing: &mut Listing,
) -> Result<(), Error> {
    let (modules, places) = file_modules(files, requested, program, &mut listing.notices)?;
    list_places(&modules, places, (requested, declared), listing);
    Ok(())
}

/// Places that probes mean in files, without a process.
pub(crate) fn file_modules(
    files: &mut Files,
    requested: &SessionRequest,
    program: Option<&ToLoad>,
    notices: &mut Vec<String>,
) -> Result<(Vec<Module>, NamedSites), Error> {
    let (mut modules, mut places) =
        (Vec::<Module>::new(), NamedSites::at_most(requested.most).without(&requested.left_out));
    for spec in &requested.specs {
        let path = match (&spec.file, program) {
            (Some(file), program) => {
                let found = program.map_or_else(|| find_file(file), |program| program.named(file, files));
                found.ok_or_else(|| no_file(file, &spec.text))?
            }
            (None, Some(program)) => program.program.clone(),
            (None, None) => return Err(Error::NoTarget { probe: spec.text.clone() }),
        };
        let failed = |why| Error::NoFile { file: path.display().to_string(), probe: spec.text.clone(), why };
        let file = files.of_path(&path).map_err(failed)?;
        let known = modules.iter().position(|module| module.file.id == file.id);
        let module = known.unwrap_or_else(|| {
            let called = path.display().to_string();
            modules.push(Module { file: file.clone(), called, bias: Bias(0), is_program: true });
            modules.len() - 1
        });
        if let Err(miss) = places.select(None, &modules, module, spec, requested.hit_action) {
            notices.push(miss_text(spec, std::slice::from_ref(&file.path), &[miss]));
        }
    }
    places.distinguish();
    Ok((modules, places))
}

/// Lists places without a process: what they would get in a usual one.
fn list_places(
    modules: &[Module],
    places: NamedSites,
    (requested, declared): (&SessionRequest, Declared<'_>),
    listing: &mut Listing,
) {
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
    let traits =
        ProcessTraits { kernel_uprobes: requested.options.kernel_uprobes, ..ProcessTraits::usual(cpus) };
    let NamedSites { found, refused, .. } = places;
    requested.progress.say(Step::Planning { functions: found.len() });
    for (index, module) in modules.iter().enumerate() {
        let traits = ProcessTraits { go: module.file.image.is_go(), ..traits };
        let here: Vec<&NamedSite> = found.iter().filter(|place| place.module == index).collect();
        if here.is_empty() {
            continue;
        }
        let request = |(probe, place): (u32, &&NamedSite)| {
            let latency = place.action.is_timed().then_some(probe);
            ActionRequest { probe, latency, function: place.function, action: place.action }
        };
        let requests: Vec<ActionRequest> = (0..).zip(&here).map(request).collect();
        let map = module.file.code_map(&requests, false, false);
        let or_trampolines = requested.hit_action == HitAction::Time(Returns::Auto);
        let answers = preview(&module.file.image, &map, &traits, &requests, or_trampolines);
        for (place, (tactic, armed)) in here.into_iter().zip(answers) {
            let returns = match requested.hit_action {
                HitAction::Time(Returns::Stack) => Some(Returns::Stack),
                HitAction::Time(_) if armed => Some(Returns::Stack),
                HitAction::Time(_) => Some(Returns::Exits),
                _ => None,
            };
            let refuse = |why: trapline_plan::Refusal| Refused {
                probe: place.probe.clone(),
                kind: why.kind(),
                reason: why.to_string(),
            };
            let declaration = declared(&module.file, place);
            let one = listed(modules, place, tactic.map_err(refuse), None);
            listing.listed.push(Listed { returns, declaration, ..one });
        }
    }
    for one in refused {
        listing.notices.push(format!("{}: {}", one.probe, one.reason));
    }
}

/// The request, with files that are in a container alone named by paths that we can open.
fn with_files_of_containers(requested: &SessionRequest, among: &Among) -> SessionRequest {
    let mut requested = requested.clone();
    let mut roots = None;
    for name in requested.specs.iter_mut().filter_map(|spec| spec.file.as_mut()) {
        if find_file(name).is_none() {
            let roots = roots.get_or_insert_with(|| other_roots(among));
            let found = roots.iter().flat_map(|root| usual(root, name)).find(|path| is_elf(path));
            if let Some(path) = found {
                *name = path.display().to_string();
            }
        }
    }
    requested
}

fn no_file(file: &str, probe: &str) -> Error {
    let why = "neither a path, nor in $PATH, nor a library in the usual directories".to_owned();
    Error::NoFile { file: file.to_owned(), probe: probe.to_owned(), why }
}

/// Finds a program by its path, or in `$PATH` as a shell does.
pub(crate) fn find_program(name: &OsStr) -> Option<PathBuf> {
    if name.as_bytes().contains(&b'/') {
        return Path::new(name).exists().then(|| PathBuf::from(name));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|path| path.is_file())
}

/// Finds a path, a program in `$PATH`, or a library by its short name.
pub(crate) fn find_file(name: &str) -> Option<PathBuf> {
    find_program(OsStr::new(name)).or_else(|| {
        if name.contains('/') {
            return None;
        }
        let files = LIBRARIES.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        let mut found: Vec<PathBuf> = files
            .map(|entry| entry.path())
            .filter(|path| is_short_name(&path.to_string_lossy(), name))
            .collect();
        found.order_by_key(|path| path.as_os_str().len());
        found.into_iter().find(|path| is_elf(path))
    })
}

/// Whether a file is a program or library, and not a linker script of the same name.
pub(crate) fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut head = [0u8; 4];
    std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok() && head == *b"\x7fELF"
}
