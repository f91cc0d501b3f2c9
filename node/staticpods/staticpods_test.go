package staticpods

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const web = `apiVersion: v1
kind: Pod
metadata:
  name: web
  labels: {app: web}
spec:
  containers:
  - {name: main, image: none, command: [sleep, infinity]}
`

// A shelf is a directory of manifests, a Source of it and what that logs.
type shelf struct {
	t   *testing.T
	dir string
	src *Source
	log *bytes.Buffer
}

func newShelf(t *testing.T) *shelf {
	s := &shelf{t: t, dir: t.TempDir(), log: &bytes.Buffer{}}
	s.src = s.source(s.dir)
	return s
}

func (s *shelf) source(path string) *Source {
	s.t.Helper()
	src, err := New(Config{Path: path, NodeName: "node-1", Log: slog.New(slog.NewTextHandler(s.log, nil))})
	if err != nil {
		s.t.Fatal(err)
	}
	return src
}

func (s *shelf) write(name, content string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(content), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) remove(name string) {
	s.t.Helper()
	if err := os.Remove(filepath.Join(s.dir, name)); err != nil {
		s.t.Fatal(err)
	}
}

// names are the pods that there are, once the files have been read.
func (s *shelf) names() string {
	s.t.Helper()
	pods, ok := s.src.Pods()
	if !ok {
		return "unknown"
	}
	var names []string
	for _, p := range pods {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	return strings.Join(names, " ")
}

func (s *shelf) only() *corev1.Pod {
	s.t.Helper()
	pods, _ := s.src.Pods()
	if len(pods) != 1 {
		s.t.Fatalf("%d pods: %s", len(pods), s.log)
	}
	return pods[0]
}

func (s *shelf) want(names string, logged ...string) {
	s.t.Helper()
	if got := s.names(); got != names {
		s.t.Errorf("the pods are %q, want %q", got, names)
	}
	lines := strings.Split(strings.TrimSpace(s.log.String()), "\n")
	if len(logged) == 0 && s.log.Len() > 0 || len(logged) > 0 && len(lines) != len(logged) {
		s.t.Errorf("logged\n%s\nwant %d lines", s.log, len(logged))
	}
	for i, text := range logged {
		if i < len(lines) && !strings.Contains(lines[i], text) {
			s.t.Errorf("logged %s, want %s", lines[i], text)
		}
	}
	s.log.Reset()
}

// TestDecoded: what becomes of the simplest file.
func TestDecoded(t *testing.T) {
	s := newShelf(t)
	s.write("web.yaml", web)
	s.src.Read()
	s.want("default/web-node-1")
	p := s.only()
	a := p.Annotations
	if len(p.UID) != 32 || a[HashAnnotation] != string(p.UID) || a[sourceAnnotation] != "file" || a[seenAnnotation] == "" {
		t.Errorf("uid %s, annotations %v", p.UID, a)
	}
	if p.Spec.NodeName != "node-1" || p.Spec.RestartPolicy != corev1.RestartPolicyAlways || *p.Spec.TerminationGracePeriodSeconds != 30 || p.Status.QOSClass != corev1.PodQOSBestEffort {
		t.Errorf("spec %+v, status %+v", p.Spec, p.Status)
	}
	if tol := p.Spec.Tolerations; len(tol) != 1 || tol[0] != (corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}) {
		t.Errorf("tolerations %v", tol)
	}
}

// TestSource: files that come, change, go, are renamed and are broken. A source looks
// every period and at no other time.
func TestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShelf(t)
		s.want("unknown")
		s.src.Read()
		s.want("")
		var changes atomic.Int64
		go s.src.Run(t.Context(), func() { changes.Add(1) })
		look := func(changed bool) {
			t.Helper()
			before := changes.Load()
			<-time.After(DefaultPeriod)
			synctest.Wait()
			if got := changes.Load() > before; got != changed {
				t.Errorf("changed: %v, want %v", got, changed)
			}
		}

		s.write("web.yaml", web)
		s.write(".hidden.yaml", strings.ReplaceAll(web, "web", "hidden"))
		s.write("b.json", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "b", "namespace": "kube-system"}, "spec": {"containers": [{"name": "c", "image": "none"}]}}`)
		s.want("")
		look(true)
		s.want("kube-system/b-node-1 default/web-node-1")
		s.remove("b.json")
		look(true)
		first := s.only()

		s.write("web.yaml", web) // the same once more
		look(false)
		if s.only() != first {
			t.Error("the same content is another pod")
		}
		s.write("web.yaml", strings.Replace(web, "infinity", "'1'", 1))
		look(true)
		second := s.only()
		if second.UID == first.UID || second.Name != first.Name {
			t.Errorf("another content is %s %s after %s %s", second.Name, second.UID, first.Name, first.UID)
		}

		s.write("web.yaml", "broken: [")
		s.write("other.yaml", strings.ReplaceAll(web, "web", "other"))
		look(true)
		s.want("default/other-node-1", "web.yaml")
		look(false)
		s.want("default/other-node-1") // and not told again
		s.remove("other.yaml")
		s.write("web.yaml", web)
		look(true)
		s.want("default/web-node-1", "read again")
		if got := s.only(); got.UID != first.UID {
			t.Errorf("the first content again has uid %s, and had %s", got.UID, first.UID)
		}

		if err := os.Rename(filepath.Join(s.dir, "web.yaml"), filepath.Join(s.dir, "w.yaml")); err != nil {
			t.Fatal(err)
		}
		look(true)
		if got := s.only(); got.UID == first.UID || got.Name != first.Name {
			t.Errorf("another file is %s %s", got.Name, got.UID)
		}

		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		look(true)
		s.want("", "does not exist")
		look(false)
		s.want("")
	})
}

// TestStable: a uid is the same for each agent of the node, and another for other nodes.
func TestStable(t *testing.T) {
	s := newShelf(t)
	s.write("web.yaml", web)
	s.src.Read()
	first := s.only().UID
	s.src = s.source(s.dir)
	s.src.Read()
	if again := s.only().UID; again != first {
		t.Errorf("uid %s after %s", again, first)
	}
	s.src.cfg.NodeName, s.src.files = "node-2", map[string]manifest{}
	s.src.Read()
	if other := s.only().UID; other == first {
		t.Error("another node has the same uid")
	}
}

// TestUnreadable: where nothing can be read, what there was stays.
func TestUnreadable(t *testing.T) {
	s := newShelf(t)
	s.write("web.yaml", web)
	s.src = s.source(filepath.Join(s.dir, "web.yaml"))
	s.src.Read()
	s.want("default/web-node-1")
	s.write("web.yaml", "broken: [")
	s.src.Read()
	s.src.Read()
	s.want("default/web-node-1", "those that there were stay")
	s.src = s.source(filepath.Join(s.dir, "web.yaml"))
	s.src.Read()
	s.want("unknown", "is no v1 Pod")

	link := filepath.Join(s.dir, "self")
	if err := os.Symlink(link, link); err != nil {
		t.Fatal(err)
	}
	s.src = s.source(link)
	s.src.Read()
	s.want("unknown", "look for manifests")
	s.src = s.source("/dev/null")
	s.src.Read()
	s.want("unknown", "neither a directory nor a file")
}

// TestSameName: of several files with one pod the last counts.
func TestSameName(t *testing.T) {
	s := newShelf(t)
	for i, name := range []string{"a", "b", "c"} {
		s.write(name, strings.Replace(web, "infinity", fmt.Sprintf("'%d'", i), 1))
	}
	s.src.Read()
	s.want("default/web-node-1", "/a", "/b")
	if got := s.only().Spec.Containers[0].Command[1]; got != "2" {
		t.Errorf("the pod sleeps %s", got)
	}
	s.remove("c")
	s.src.Read()
	s.want("default/web-node-1", "/b as well", "read again")
	if got := s.only().Spec.Containers[0].Command[1]; got != "1" {
		t.Errorf("the pod sleeps %s", got)
	}
}

// TestBounds: more files than are read, and one that is too large.
func TestBounds(t *testing.T) {
	s := newShelf(t)
	for i := range maxFiles + 1 {
		s.write(fmt.Sprintf("%04d", i), strings.ReplaceAll(web, "web", fmt.Sprintf("p%04d", i)))
	}
	s.src.Read()
	if pods, ok := s.src.Pods(); len(pods) != maxFiles || !ok {
		t.Errorf("%d pods, %v", len(pods), ok)
	}
	s.want(s.names(), fmt.Sprintf("%d files", maxFiles+1))
	s = newShelf(t)
	s.write("large", web+"#"+strings.Repeat("x", maxFile))
	if err := os.Mkdir(filepath.Join(s.dir, "deeper"), 0o700); err != nil {
		t.Fatal(err)
	}
	s.write("web", web)
	s.src.Read()
	s.want("default/web-node-1", "directories are not looked into", "more than 10485760 bytes")
}
