package pods

// A random walk of static pods and their mirrors.

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestStaticWalk changes files, mirrors, the server and the agent at random. It checks that no
// two contents of a file run at the same time (by the runtime), and that in the end exactly the
// pods of the files run and have mirrors.
func TestStaticWalk(t *testing.T) {
	o := memory.Options{Start: func(c runtime.Container) memory.Behaviour {
		h := len(c.Name) + c.Attempt*13 + len(c.Pod.Name)*7
		return memory.Behaviour{TermDelay: time.Duration(h%5) * 7 * time.Second}
	}}
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 2)) //nolint:gosec // a test
			inStaticWorld(t, o, func(w *staticWorld) { w.walk(rnd) })
		})
	}
}

var walkers = []string{"a", "bb", "ccc"}

func (w *staticWorld) walk(rnd *rand.Rand) {
	contents := map[string]int{} // 0 for no file
	var defined []*corev1.Pod
	pods := map[types.UID]*corev1.Pod{} // a source has the same one each time
	w.start()
	for range 200 {
		synctest.Wait() // else the agent could make it during the look-up
		name := walkers[rnd.IntN(len(walkers))]
		full := name + "-" + thisNode
		mirror := w.find("default", full)
		switch rnd.IntN(10) {
		case 0, 1, 2:
			contents[name] = rnd.IntN(4)
			defined = nil
			for _, name := range walkers {
				if contents[name] == 0 {
					continue
				}
				p := staticPod(name, fmt.Sprint(contents[name]))
				if pods[p.UID] == nil {
					pods[p.UID] = p
				}
				defined = append(defined, pods[p.UID])
			}
			w.define(defined...)
		case 3:
			if mirror != nil && mirror.DeletionTimestamp == nil {
				w.remove(full, []int64{-1, 0, 30}[rnd.IntN(3)])
			} else if mirror == nil && rnd.IntN(2) == 0 {
				w.create(newPod(full, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "forged"} }))
			}
		case 4:
			w.rt.Exit(full, "main", rnd.IntN(2))
		case 5:
			if rnd.IntN(2) == 0 {
				w.setOffline(true)
			} else {
				w.online()
			}
		case 6:
			w.restart()
		case 7:
			w.registered(types.UID(fmt.Sprintf("node-%d", rnd.IntN(2))))
		default:
			advance(time.Duration(rnd.IntN(30_000)) * time.Millisecond)
		}
	}
	w.online()
	advance(20 * time.Minute)
	for _, p := range defined {
		w.wantState(p.Name, "main", "Running")
		if m := w.pod(p.Name); !shows(m, p) || m.OwnerReferences[0].UID != nodeUID {
			w.t.Errorf("%s has the mirror %+v", p.UID, m.ObjectMeta)
		}
	}
	if n := len(w.running()); n != len(defined) {
		w.t.Errorf("%v run, want %d", w.running(), len(defined))
	}
	w.define()
	advance(20 * time.Minute)
	for _, name := range walkers {
		if m := w.find("default", name+"-"+thisNode); m != nil {
			w.t.Errorf("there is still %+v", m.ObjectMeta)
		}
	}
	if n := len(w.rt.Specs()); n != 0 {
		w.t.Errorf("%d containers are left", n)
	}
	if dirs, err := os.ReadDir(filepath.Join(w.cfg.Dir, "pods")); err != nil || len(dirs) != 0 {
		w.t.Errorf("directories %v, %v; want none", dirs, err)
	}
}
