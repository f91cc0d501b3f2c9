package kubeletapi

// From names in a request to a pod and a container, and the answers, as people know
// them from Kubernetes, when there is none.

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
)

// A httpError is what a client gets for an error.
type httpError struct {
	code int
	text string
}

func (e *httpError) Error() string { return e.text }

func errorf(code int, format string, args ...any) error {
	return &httpError{code, fmt.Sprintf(format, args...)}
}

// writeError is the one place where errors become answers.
func writeError(w http.ResponseWriter, err error) {
	var he *httpError
	if !errors.As(err, &he) {
		he = &httpError{http.StatusInternalServerError, err.Error()}
	}
	h := w.Header()
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(he.code)
	_, _ = w.Write([]byte(he.text))
}

// pod finds the pod that the path of r names.
func (s *Server) pod(r *http.Request) (*corev1.Pod, error) {
	name := types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("pod")}
	pod, err := s.cfg.Pods.Pod(r.Context(), name, types.UID(r.PathValue("uid")))
	if errors.Is(err, runtime.ErrNotFound) {
		return nil, errorf(http.StatusNotFound, "pod %q does not exist", name)
	}
	return pod, err
}

func podID(pod *corev1.Pod) runtime.PodID {
	return runtime.PodID{NamespacedName: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID}
}

// attempts lists what the runtime has of a container, newest first.
func (s *Server) attempts(ctx context.Context, pod *corev1.Pod, name string) ([]runtime.ContainerStatus, error) {
	all, err := s.cfg.Runtime.Containers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	mine := slices.DeleteFunc(all, func(c runtime.ContainerStatus) bool { return c.Pod.UID != pod.UID || c.Name != name })
	slices.SortFunc(mine, func(a, b runtime.ContainerStatus) int { return b.Attempt - a.Attempt })
	return mine, nil
}

// hasContainer says whether the pod's spec has a container of that name, of
// whichever kind.
func hasContainer(pod *corev1.Pod, name string) bool {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name == name {
			return true
		}
	}
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name })
}

// declares says whether a container of the pod, of whichever kind, names a TCP port.
func declares(pod *corev1.Pod, port int32) bool {
	named := func(p corev1.ContainerPort) bool {
		return p.ContainerPort == port && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "")
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if slices.ContainsFunc(c.Ports, named) {
			return true
		}
	}
	return slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool {
		return slices.ContainsFunc(c.Ports, named)
	})
}

func containerStatus(pod *corev1.Pod, name string) *corev1.ContainerStatus {
	st := &pod.Status
	for _, list := range [][]corev1.ContainerStatus{st.ContainerStatuses, st.InitContainerStatuses, st.EphemeralContainerStatuses} {
		if i := slices.IndexFunc(list, func(c corev1.ContainerStatus) bool { return c.Name == name }); i >= 0 {
			return &list[i]
		}
	}
	return nil
}

// running finds the running container that a command or client is to be joined to. As a kubelet
// says it, one that does not run is not found.
func (s *Server) running(r *http.Request) (runtime.ContainerStatus, error) {
	pod, err := s.pod(r)
	if err != nil {
		return runtime.ContainerStatus{}, err
	}
	name := r.PathValue("container")
	list, err := s.attempts(r.Context(), pod, name)
	switch {
	case err != nil:
		return runtime.ContainerStatus{}, err
	case len(list) == 0 || list[0].State != runtime.Running:
		return runtime.ContainerStatus{}, errorf(http.StatusInternalServerError, "container not found (%q)", name)
	}
	return list[0], nil
}

// logged chooses the attempt whose log is asked for. list is newest first.
func logged(pod *corev1.Pod, name string, previous bool, list []runtime.ContainerStatus) (runtime.ContainerStatus, error) {
	st := containerStatus(pod, name)
	if !previous {
		if len(list) > 0 {
			return list[0], nil
		}
		reason := "ContainerCreating"
		if st != nil && st.State.Waiting != nil && st.State.Waiting.Reason != "" {
			reason = st.State.Waiting.Reason
		}
		if st != nil && st.State.Terminated != nil {
			// It could not be started, or its files are gone.
			return runtime.ContainerStatus{}, errorf(http.StatusBadRequest, "container %q in pod %q is terminated", name, pod.Name)
		}
		return runtime.ContainerStatus{}, errorf(http.StatusBadRequest, "container %q in pod %q is waiting to start: %s", name, pod.Name, reason)
	}
	// While a container waits for its next attempt the one before is the newest
	// there is.
	if len(list) > 0 && list[0].State == runtime.Exited && st != nil && st.State.Waiting != nil {
		return list[0], nil
	}
	if len(list) > 1 {
		return list[1], nil
	}
	return runtime.ContainerStatus{}, errorf(http.StatusBadRequest, "previous terminated container %q in pod %q not found", name, pod.Name)
}
