//! Names of containers, by the files that their runtimes keep for themselves.
//!
//! In: a root folder, an id or a name. Out: the container's names; ids of a name. Does not: ask a runtime's daemon, which
//! takes rights of its own, or read what root alone may read for others.
//!
//! | runtime | file | what it says |
//! |---|---|---|
//! | docker | `var/lib/docker/containers/ID/config.v2.json` | `Name`, `Config.Labels` |
//! | podman, CRI-O | `var/lib/containers/storage/*-containers/containers.json` | `id` and `names` of all |
//! | CRI-O | `run/containers/storage/*-containers/ID/userdata/config.json` | annotations |
//! | containerd | `run/containerd/io.containerd.runtime.v2.task/*/ID/config.json` | annotations |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Container, DIGITS, Pod};

/// Folders with a folder for each container, and the file in it.
const DOCKER: (&str, &str) = ("var/lib/docker/containers", "config.v2.json");
/// containerd's have a folder for each of its namespaces in between.
const TASKS: [&str; 2] =
    ["run/containerd/io.containerd.runtime.v2.task", "run/k3s/containerd/io.containerd.runtime.v2.task"];
/// Storage of podman and CRI-O; users have their own.
const STORAGE: [&str; 2] = ["var/lib/containers/storage", "root/.local/share/containers/storage"];
const USERS: (&str, &str) = ("home", ".local/share/containers/storage");
const CRIO: &str = "run/containers/storage";

/// Keys of annotations and labels: containerd's for Kubernetes, what kubelet gives, nerdctl's.
const NAME: [&str; 3] = ["io.kubernetes.cri.container-name", "io.kubernetes.container.name", "nerdctl/name"];
const POD: [&str; 2] = ["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"];
const NAMESPACE: [&str; 2] = ["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"];
const UID: [&str; 2] = ["io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid"];

/// No container has a name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no container is named `{name}`{}; or give at least 12 digits of its id", known_text(known))]
pub struct UnknownContainer {
    /// What was given.
    pub name: String,
    /// Names that there are.
    pub known: Vec<String>,
}

fn known_text(known: &[String]) -> String {
    match known {
        [] => ", and no files of docker, podman, containerd or CRI-O that name any can be read".to_owned(),
        known => format!(": there are {}", known.join(", ")),
    }
}

/// Ids of the containers with a name: `NAME`, `POD`, `NAMESPACE/POD` or `NAMESPACE/POD/NAME`.
///
/// # Errors
/// When there is none.
pub fn ids_of(name: &str) -> Result<Vec<String>, UnknownContainer> {
    ids_below(Path::new("/"), name)
}

fn ids_below(root: &Path, name: &str) -> Result<Vec<String>, UnknownContainer> {
    let all: Vec<Container> =
        ids(root).into_iter().map(|id| named(root, Container { id, ..Container::default() })).collect();
    let is = |one: &&Container| {
        let pod = one.pod.clone().unwrap_or_default();
        let whole = match (&pod.namespace, &pod.name) {
            (Some(namespace), Some(pod)) => Some(format!("{namespace}/{pod}")),
            _ => None,
        };
        let names = [one.name.clone(), pod.name, whole, Some(one.shown())];
        names.iter().flatten().any(|known| known == name)
    };
    let found: Vec<String> = all.iter().filter(is).map(|one| one.id.clone()).collect();
    if found.is_empty() {
        let is_named =
            |one: &&Container| one.name.is_some() || one.pod.as_ref().is_some_and(|pod| pod.name.is_some());
        let known: BTreeSet<String> = all.iter().filter(is_named).map(Container::shown).collect();
        return Err(UnknownContainer { name: name.to_owned(), known: known.into_iter().collect() });
    }
    Ok(found)
}

/// With what files below a root say of it.
pub(super) fn named(root: &Path, container: Container) -> Container {
    let Container { id, name, pod } = container;
    let mut found = Found { name, pod: pod.unwrap_or_default() };
    if let Some(docker) = json(&root.join(DOCKER.0).join(&id).join(DOCKER.1)) {
        found.labels(&docker["Config"]["Labels"]);
        let name = docker["Name"].as_str().map(|name| name.trim_start_matches('/'));
        found.name = found.name.or(name.map(str::to_owned));
    }
    for folder in bundles(root) {
        if let Some(bundle) = json(&folder.join(&id).join("config.json")) {
            found.labels(&bundle["annotations"]);
        }
    }
    let stores = stores(root);
    for Store { folder, .. } in &stores {
        if let Some(bundle) = json(&folder.join(&id).join("userdata/config.json")) {
            found.labels(&bundle["annotations"]);
        }
    }
    // CRI-O's names in these lists are made of several.
    let mut of_all = stores.into_iter().flat_map(|store| store.listed);
    found.name = found.name.or_else(|| of_all.find(|(one, _)| *one == id)?.1);
    let pod = Some(found.pod).filter(|pod| *pod != Pod::default());
    Container { id, name: found.name, pod }
}

/// Names as they are found. The first one holds.
struct Found {
    name: Option<String>,
    pod: Pod,
}

impl Found {
    /// Takes what labels or annotations say.
    fn labels(&mut self, of: &Value) {
        let text = |keys: &[&str]| keys.iter().find_map(|key| of[key].as_str()).map(str::to_owned);
        let Self { name, pod } = self;
        for (known, keys) in
            [(name, &NAME[..]), (&mut pod.name, &POD), (&mut pod.namespace, &NAMESPACE), (&mut pod.uid, &UID)]
        {
            *known = known.take().or_else(|| text(keys));
        }
    }
}

/// All ids that the files know.
fn ids(root: &Path) -> BTreeSet<String> {
    let by_folder =
        bundles(root).into_iter().chain([root.join(DOCKER.0)]).flat_map(|folder| entries(&folder));
    let by_folder = by_folder.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned()));
    let by_list = stores(root).into_iter().flat_map(|store| store.listed).map(|(id, _)| id);
    let is_id = |id: &String| id.len() == DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    by_folder.chain(by_list).filter(is_id).collect()
}

/// Folders in which containerd has a folder for each container.
fn bundles(root: &Path) -> Vec<PathBuf> {
    TASKS.iter().flat_map(|tasks| entries(&root.join(tasks))).collect()
}

/// A folder in which podman and CRI-O have a folder for each container.
struct Store {
    folder: PathBuf,
    /// Ids and names that are listed in it.
    listed: Vec<(String, Option<String>)>,
}

fn stores(root: &Path) -> Vec<Store> {
    let users = entries(&root.join(USERS.0)).into_iter().map(|home| home.join(USERS.1));
    let storage = STORAGE.iter().chain([&CRIO]).map(|path| root.join(path)).chain(users);
    let of_driver = |path: &PathBuf| path.to_string_lossy().ends_with("-containers");
    let folders = storage.flat_map(|path| entries(&path)).filter(of_driver);
    folders.map(|folder| Store { listed: listed(&folder.join("containers.json")), folder }).collect()
}

fn listed(path: &Path) -> Vec<(String, Option<String>)> {
    let list = json(path).unwrap_or_default();
    let one = |of: &Value| Some((of["id"].as_str()?.to_owned(), of["names"][0].as_str().map(str::to_owned)));
    list.as_array().map(Vec::as_slice).unwrap_or_default().iter().filter_map(one).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn json(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::{Container, Pod, UnknownContainer, ids_below, named};
    use std::path::{Path, PathBuf};

    /// A folder with files as runtimes write them. Podman's list was taken from a real one.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("trapline-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&root).expect("a folder");
            Self(root)
        }
        fn file(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).expect("ours");
        }
    }

    fn of(root: &Path, id: &str) -> Container {
        named(root, Container { id: id.to_owned(), ..Container::default() })
    }

    #[test]
    fn each_runtimes_files_are_read() {
        let root = Root::new("runtimes");
        let ids: Vec<String> = ["1a", "2b", "3c", "4d", "5e"].iter().map(|two| two.repeat(32)).collect();
        let [docker, podman, crio, cri, nerdctl] = &ids[..] else { panic!("five") };
        root.file(
            &format!("var/lib/docker/containers/{docker}/config.v2.json"),
            r#"{"Name":"/web","Config":{"Labels":{}}}"#,
        );
        let list = format!(
            r#"[{{"id":"{podman}","names":["shop-web"],"image":"","metadata":"{{}}"}},{{"id":"{crio}","names":["k8s_app_web-7d4_shop_x_0"]}}]"#
        );
        root.file("var/lib/containers/storage/overlay-containers/containers.json", &list);
        let annotations = r#"{"annotations":{"io.kubernetes.pod.name":"web-7d4","io.kubernetes.pod.namespace":"shop","io.kubernetes.container.name":"app"}}"#;
        root.file(
            &format!("run/containers/storage/overlay-containers/{crio}/userdata/config.json"),
            annotations,
        );
        let annotations = r#"{"annotations":{"io.kubernetes.cri.sandbox-name":"db-0","io.kubernetes.cri.sandbox-namespace":"shop","io.kubernetes.cri.container-name":"db"}}"#;
        root.file(
            &format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{cri}/config.json"),
            annotations,
        );
        root.file(
            &format!("run/containerd/io.containerd.runtime.v2.task/default/{nerdctl}/config.json"),
            r#"{"annotations":{"nerdctl/name":"job"}}"#,
        );
        let shown: Vec<String> = ids.iter().map(|id| of(&root.0, id).shown()).collect();
        assert_eq!(shown, ["web", "shop-web", "shop/web-7d4/app", "shop/db-0/db", "job"]);
        for (name, id) in [
            ("web", docker),
            ("shop-web", podman),
            ("web-7d4", crio),
            ("shop/db-0", cri),
            ("shop/db-0/db", cri),
            ("job", nerdctl),
        ] {
            assert_eq!(ids_below(&root.0, name), Ok(vec![id.clone()]), "{name}");
        }
        let known = shown.iter().cloned().collect::<std::collections::BTreeSet<_>>().into_iter().collect();
        let unknown = ids_below(&root.0, "nothing").expect_err("no such name");
        assert_eq!(unknown, UnknownContainer { name: "nothing".to_owned(), known });
    }

    #[test]
    fn what_is_known_by_the_group_stays_and_broken_files_say_nothing() {
        let root = Root::new("broken");
        let id = "6f".repeat(32);
        root.file(&format!("var/lib/docker/containers/{id}/config.v2.json"), "{\"Name\":");
        root.file("var/lib/containers/storage/overlay-containers/containers.json", "[1, {\"id\": 3}]");
        let pod = Some(Pod { uid: Some("u".to_owned()), ..Pod::default() });
        let before = Container { id, name: None, pod };
        assert_eq!(named(&root.0, before.clone()), before);
        assert!(ids_below(&root.0, "web").expect_err("none").to_string().contains("no files of docker"));
    }
}
