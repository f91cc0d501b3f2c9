package usage

import (
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

// FuzzReading: whatever a node says, no amount is beyond the bounds, and none is of a
// pod that is not its own.
func FuzzReading(f *testing.F) {
	f.Add([]byte(`{"node":{"nodeName":"n","cpu":{"time":"2026-01-02T03:04:05Z","usageNanoCores":5,"usageCoreNanoSeconds":9},"memory":{"workingSetBytes":7}},
		"pods":[{"podRef":{"namespace":"ns","name":"p","uid":"uid-p"},"containers":[{"name":"c","cpu":{"usageNanoCores":1},"memory":{"workingSetBytes":1}}]}]}`),
		[]byte(`{"node":{"nodeName":"n","cpu":{"time":"2026-01-02T03:04:06Z","usageCoreNanoSeconds":18446744073709551615},"memory":{"workingSetBytes":7}}}`))
	bound := []corev1.Pod{pod("ns", "p", "n", "c"), pod("ns", "q", "m", "c")}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var first, second stats.Summary
		if json.Unmarshal(a, &first) != nil || json.Unmarshal(b, &second) != nil {
			return
		}
		used := newReading(&second, "n", bound, time.Now()).since(newReading(&first, "n", bound, time.Now()))
		check := func(a amount) {
			if a.rate > maxCores*1e9 || a.memory > maxBytes || a.window <= 0 {
				t.Errorf("%+v", a)
			}
			if l := a.list(); l.Cpu().Sign() < 0 || l.Memory().Sign() < 0 {
				t.Errorf("%+v", l)
			}
		}
		if used.node != nil {
			check(*used.node)
		}
		for uid, containers := range used.pods {
			if uid != "uid-p" {
				t.Errorf("a pod %s", uid)
			}
			for _, a := range containers {
				check(a)
			}
		}
	})
}
