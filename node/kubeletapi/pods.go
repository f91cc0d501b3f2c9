package kubeletapi

// The lists of pods.

import (
	"encoding/json"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime"
)

func (s *Server) listPods(w http.ResponseWriter, r *http.Request) {
	pods, err := s.cfg.Pods.Pods(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	writePods(w, pods)
}

// listRunningPods lists what the runtime has of pods with a running container,
// whatever is meant to run: only names, and which containers.
func (s *Server) listRunningPods(w http.ResponseWriter, r *http.Request) {
	all, err := s.cfg.Runtime.Containers(r.Context())
	if err != nil {
		writeError(w, err)
		return
	}
	byID := map[runtime.PodID]*corev1.Pod{}
	var pods []*corev1.Pod
	for _, c := range all {
		if c.State != runtime.Running {
			continue
		}
		pod := byID[c.Pod]
		if pod == nil {
			pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.Pod.Namespace, Name: c.Pod.Name, UID: c.Pod.UID}}
			byID[c.Pod] = pod
			pods = append(pods, pod)
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: c.Name, Image: c.Image})
	}
	writePods(w, pods)
}

func writePods(w http.ResponseWriter, pods []*corev1.Pod) {
	list := corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"},
		Items:    make([]corev1.Pod, 0, len(pods)),
	}
	for _, p := range pods {
		list.Items = append(list.Items, *p)
	}
	writeJSON(w, &list)
}

func writeJSON(w http.ResponseWriter, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(b)
}
