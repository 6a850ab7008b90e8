//! The container and the service that a process belongs to.
//!
//! In: a pid. Out: ids, by the names of its control groups. Names, by files that container runtimes keep (`names`). The
//! service, by the environment that the process was started with, or by its systemd unit. Does not: ask a runtime, or
//! look again at a process.
//!
//! What runtimes make of an id in the name of a control group:
//!
//! ```text
//!   docker       /docker/ID                                   /system.slice/docker-ID.scope
//!   podman       /libpod_parent/libpod-ID                     /machine.slice/libpod-ID.scope
//!   containerd   /kubepods/burstable/podUID/ID                /kubepods.slice/kubepods-podUID.slice/cri-containerd-ID.scope
//!   CRI-O        /kubepods/podUID/crio-ID                     /kubepods.slice/kubepods-podUID.slice/crio-ID.scope
//! ```

mod names;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

pub use names::{UnknownContainer, ids_of};

/// Number of digits of a container's id.
const DIGITS: usize = 64;
/// A pod's id: with dashes, or a static pod's without.
const POD_DIGITS: [usize; 2] = [36, 32];
/// Where a program may be told its service's name (OpenTelemetry).
const SERVICE: &[u8] = b"OTEL_SERVICE_NAME=";

/// What a process is a part of.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Workload {
    /// The innermost container.
    pub container: Option<Container>,
    /// The service's name.
    pub service: Option<String>,
}

/// A container.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Container {
    /// Its id: 64 hexadecimal digits.
    pub id: String,
    /// Its name: in a pod the one that the pod gives it, otherwise the runtime's.
    pub name: Option<String>,
    /// The Kubernetes pod that it is in.
    pub pod: Option<Pod>,
}

/// A Kubernetes pod, as far as it is known.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Pod {
    /// Its id, with dashes.
    pub uid: Option<String>,
    /// Its name.
    pub name: Option<String>,
    /// The namespace in which it has that name.
    pub namespace: Option<String>,
}

impl Workload {
    /// That of a process. What cannot be read is unknown.
    pub(crate) fn of(pid: u32) -> Self {
        let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        Self {
            container: container_in(&groups).map(named),
            service: told(&environment).or_else(|| unit_in(&groups)),
        }
    }
}

impl Container {
    /// For people: `NAMESPACE/POD/NAME`, or the name, or the first digits of the id.
    #[must_use]
    pub fn shown(&self) -> String {
        let name = || self.name.clone().unwrap_or_else(|| self.id.chars().take(12).collect());
        let Some(Pod { name: Some(pod), namespace, .. }) = &self.pod else { return name() };
        let namespace = namespace.as_ref().map_or_else(String::new, |namespace| format!("{namespace}/"));
        format!("{namespace}{pod}/{}", name())
    }
}

/// With the names that a runtime knows. They are looked for once for each id.
fn named(container: Container) -> Container {
    static KNOWN: LazyLock<Mutex<HashMap<String, Container>>> = LazyLock::new(Mutex::default);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let id = container.id.clone();
    known.entry(id).or_insert_with(|| names::named(Path::new("/"), container)).clone()
}

/// Paths in the text of /proc/PID/cgroup.
fn paths(groups: &str) -> impl Iterator<Item = &str> {
    groups.lines().filter_map(|line| line.splitn(3, ':').nth(2))
}

/// The innermost container, and its pod's id.
fn container_in(groups: &str) -> Option<Container> {
    let (path, id) = paths(groups).find_map(|path| Some((path, path.rsplit('/').find_map(id_in)?)))?;
    let uid = path.rsplit('/').find_map(pod_in);
    let pod = uid.map(|uid| Pod { uid: Some(uid), ..Pod::default() });
    Some(Container { id: id.to_owned(), name: None, pod })
}

/// The id in a part of a path. A runtime's own helper has the container's id in its group's name, too.
fn id_in(part: &str) -> Option<&str> {
    if part.contains("conmon") {
        return None;
    }
    part.split(|one: char| !one.is_ascii_hexdigit()).find(|digits| digits.len() == DIGITS)
}

/// The pod's id in a part of a path. systemd's names have underscores in place of its dashes.
fn pod_in(part: &str) -> Option<String> {
    let (_, rest) = part.rsplit_once("pod")?;
    let is_of_id = |one: &char| one.is_ascii_hexdigit() || matches!(one, '-' | '_');
    let id: String =
        rest.chars().take_while(is_of_id).map(|one| if one == '_' { '-' } else { one }).collect();
    POD_DIGITS.contains(&id.len()).then_some(id)
}

/// The innermost unit of systemd's that is a service.
fn unit_in(groups: &str) -> Option<String> {
    let service = |part: &str| {
        part.strip_suffix(".service").filter(|unit| !unit.starts_with("user@")).map(str::to_owned)
    };
    paths(groups).find_map(|path| path.rsplit('/').find_map(service))
}

/// The service's name in an environment.
fn told(environment: &[u8]) -> Option<String> {
    let value = environment.split(|&byte| byte == 0).find_map(|one| one.strip_prefix(SERVICE))?;
    Some(String::from_utf8_lossy(value).into_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{Container, Pod, container_in, told, unit_in};

    const UID: &str = "74c13223-5a00-11e9-b385-42010a80018d";

    #[test]
    fn ids_are_found_in_the_names_that_runtimes_give_to_groups() {
        let (id, outer) = ("3f".repeat(32), "a0".repeat(32));
        let systemd = UID.replace('-', "_");
        for (path, pod) in [
            (format!("/docker/{id}"), false),
            (format!("/docker/{outer}/docker/{id}"), false),
            (format!("/system.slice/docker-{id}.scope"), false),
            (format!("/libpod_parent/libpod-{id}"), false),
            (format!("/machine.slice/libpod-{id}.scope/container"), false),
            (format!("/kubepods/burstable/pod{UID}/{id}"), true),
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{systemd}.slice/cri-containerd-{id}.scope"
                ),
                true,
            ),
            (format!("/kubepods.slice/kubepods-pod{systemd}.slice:cri-containerd:{id}"), true),
            (format!("/kubepods/besteffort/pod{UID}/crio-{id}"), true),
        ] {
            let pod = pod.then(|| Pod { uid: Some(UID.to_owned()), ..Pod::default() });
            let expected = Container { id: id.clone(), name: None, pod };
            assert_eq!(container_in(&format!("12:pids:/\n0::{path}\n")), Some(expected), "{path}");
        }
        for path in [
            "/",
            "/user.slice/user-0.slice/session-1.scope",
            "/docker/3f3f",
            &format!("/libpod_parent/conmon-{id}"),
            &format!("/a/{id}0"),
        ] {
            assert_eq!(container_in(&format!("0::{path}\n")), None, "{path}");
        }
    }

    #[test]
    fn a_service_is_named_by_the_environment_or_by_its_unit() {
        assert_eq!(unit_in("0::/system.slice/nginx.service\n").as_deref(), Some("nginx"));
        assert_eq!(unit_in("0::/user.slice/user@0.service/app.slice/web.service\n").as_deref(), Some("web"));
        assert_eq!(unit_in("0::/user.slice/user@0.service/init.scope\n"), None);
        assert_eq!(told(b"PATH=/bin\0OTEL_SERVICE_NAME=checkout\0"), Some("checkout".to_owned()));
        assert_eq!((told(b"OTEL_SERVICE_NAME=\0"), told(b"MY_OTEL_SERVICE_NAME=x\0")), (None, None));
    }

    #[test]
    fn a_container_is_shown_by_the_best_name_that_is_known() {
        let pod = |name: Option<&str>, namespace: Option<&str>| Pod {
            uid: None,
            name: name.map(str::to_owned),
            namespace: namespace.map(str::to_owned),
        };
        let shown = |name: Option<&str>, pod: Option<Pod>| {
            Container { id: "3f".repeat(32), name: name.map(str::to_owned), pod }.shown()
        };
        assert_eq!(shown(None, None), "3f3f3f3f3f3f");
        assert_eq!(shown(Some("web"), None), "web");
        assert_eq!(shown(Some("app"), Some(pod(Some("web-7d4"), Some("shop")))), "shop/web-7d4/app");
        assert_eq!(shown(None, Some(pod(Some("web-7d4"), None))), "web-7d4/3f3f3f3f3f3f");
        assert_eq!(shown(Some("app"), Some(pod(None, Some("shop")))), "app");
    }
}
