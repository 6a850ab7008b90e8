//! Labels for the container and the service of a process, by OpenTelemetry's conventions for resources
//! (<https://opentelemetry.io/docs/specs/semconv/resource/>).
//!
//! In: a workload. Out: names and values. Does not: write them.

use trapline::containers::Workload;

/// The labels that are known.
pub(crate) fn labels(of: &Workload) -> Vec<(&'static str, &str)> {
    let container = of.container.as_ref();
    let pod = container.and_then(|container| container.pod.as_ref());
    let name = if pod.is_some() { "k8s.container.name" } else { "container.name" };
    let all = [
        ("service.name", of.service.as_deref()),
        ("container.id", container.map(|container| container.id.as_str())),
        (name, container.and_then(|container| container.name.as_deref())),
        ("k8s.pod.uid", pod.and_then(|pod| pod.uid.as_deref())),
        ("k8s.pod.name", pod.and_then(|pod| pod.name.as_deref())),
        ("k8s.namespace.name", pod.and_then(|pod| pod.namespace.as_deref())),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use trapline::containers::{Container, Pod, Workload};

    use super::labels;

    #[test]
    fn names_are_those_of_open_telemetry() {
        let text = |text: &str| Some(text.to_owned());
        let pod = Pod { uid: text("u"), name: text("web-7d4"), namespace: text("shop") };
        let container = Container { id: "3f".to_owned(), name: text("app"), pod: Some(pod) };
        let mut workload = Workload { container: Some(container.clone()), service: text("checkout") };
        let expected = [
            ("service.name", "checkout"),
            ("container.id", "3f"),
            ("k8s.container.name", "app"),
            ("k8s.pod.uid", "u"),
            ("k8s.pod.name", "web-7d4"),
            ("k8s.namespace.name", "shop"),
        ];
        assert_eq!(labels(&workload), expected);
        workload = Workload { container: Some(Container { pod: None, ..container }), service: None };
        assert_eq!(labels(&workload), [("container.id", "3f"), ("container.name", "app")]);
        assert_eq!(labels(&Workload::default()), []);
    }
}
