package kubelet

import (
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Whatever a query says, reading it does not panic, and it has as many ports as it
// names.
func FuzzParams(f *testing.F) {
	f.Add("container=c&follow=true&tailLines=5&sinceTime=2026-01-02T03:04:05Z&stream=All")
	f.Add("command=sh&command=-c&stdin=true&tty=0")
	f.Add("ports=80&ports=-1&ports=4294967296")
	f.Add("follow&tailLines&sinceTime&stream&ports&stdin")
	f.Fuzz(func(t *testing.T, query string) {
		q, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		_ = readLog(q, &corev1.PodLogOptions{})
		_ = readExec(q, &corev1.PodExecOptions{})
		_ = readAttach(q, &corev1.PodAttachOptions{})
		var o corev1.PodPortForwardOptions
		if err := readPorts(q, &o); err == nil && len(o.Ports) != len(q["ports"]) {
			t.Errorf("%d ports of %d", len(o.Ports), len(q["ports"]))
		}
	})
}
