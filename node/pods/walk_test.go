package pods

// A random walk of many pods.

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestRandomWalk changes pods at random a thousand times. It checks that the runtime's
// contract is kept, an ended pod stays ended (by checkPatch), restart counts never fall, and
// in the end nothing is left.
func TestRandomWalk(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test
			o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
				h := uint(len(c.Name)*7 + c.Attempt*13 + len(c.Pod.Name)) //nolint:gosec // small
				b := memory.Behaviour{TermDelay: time.Duration(h%5) * time.Second, TermCode: int(h % 3)}
				if h%4 == 0 {
					b.ExitAfter, b.ExitCode = time.Duration(1+h%20)*time.Second, int(h%2)
				}
				if h%11 == 0 {
					b.Err = errors.New("cannot")
				}
				return b
			}}
			inWorld(t, o, func(w *world) { walk(w, rnd) })
		})
	}
}

func walk(w *world, rnd *rand.Rand) {
	restarts := map[types.UID]int32{}
	names := []string{"p", "qq", "rrr", "ssss"}
	policies := []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}
	for range 250 {
		name := names[rnd.IntN(len(names))]
		p := w.find("default", name)
		switch rnd.IntN(9) {
		case 0, 1:
			if p == nil {
				w.create(newPod(name, func(p *corev1.Pod) {
					if rnd.IntN(2) == 0 {
						withInit("init", "sidecar")(p)
						p.Spec.InitContainers[1].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
					}
					p.Spec.Containers = append(p.Spec.Containers, container1("second"))
					p.Spec.RestartPolicy = policies[rnd.IntN(3)]
				}))
			}
		case 2:
			if p != nil && p.DeletionTimestamp == nil {
				w.remove(name, int64(rnd.IntN(20)))
			}
		case 3:
			if p != nil && rnd.IntN(3) == 0 {
				w.remove(name, -1)
			}
		case 4:
			w.rt.Exit(name, []string{"main", "second", "init", "sidecar"}[rnd.IntN(4)], rnd.IntN(2))
		case 5:
			w.setOffline(rnd.IntN(3) == 0)
		case 6:
			if rnd.IntN(4) == 0 {
				w.restart()
			}
		default:
			advance(time.Duration(rnd.IntN(30_000)) * time.Millisecond)
		}
		for _, name := range names {
			if p := w.find("default", name); p != nil && len(p.Status.ContainerStatuses) > 0 {
				n := p.Status.ContainerStatuses[0].RestartCount
				if n < restarts[p.UID] {
					w.t.Fatalf("restart count of %s fell from %d to %d", name, restarts[p.UID], n)
				}
				restarts[p.UID] = n
			}
		}
	}
	w.setOffline(false)
	for _, name := range names {
		if w.find("default", name) != nil {
			w.remove(name, 1)
		}
	}
	advance(10 * time.Minute)
	for _, name := range names {
		if p := w.find("default", name); p != nil {
			w.t.Errorf("pod %s is left: %+v", name, p.Status)
		}
	}
	if n := len(w.rt.Specs()); n != 0 {
		w.t.Errorf("%d containers are left", n)
	}
	if dirs, err := os.ReadDir(filepath.Join(w.cfg.Dir, "pods")); err != nil || len(dirs) != 0 {
		w.t.Errorf("directories %v, %v; want none", dirs, err)
	}
}
