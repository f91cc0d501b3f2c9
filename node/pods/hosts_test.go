package pods

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/node/runtime"
	"github.com/hawser-project/hawser/node/runtime/memory"
)

// TestHostAliases: containers of a pod with aliases have the machine's /etc/hosts and the
// aliases, unless a volume is there. With the machine's host name and no aliases it is the machine's.
func TestHostAliases(t *testing.T) {
	machine, err := os.ReadFile(hostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	inWorld(t, memory.Options{}, func(w *world) {
		w.create(newPod("a", func(p *corev1.Pod) {
			p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"one.example", "two.example"}}, {IP: "fd00::1", Hostnames: []string{"six.example"}}}
			own := container1("own")
			own.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: hostsPath + "/"}}
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			p.Spec.Containers = append(p.Spec.Containers, own)
		}))
		w.create(newPod("none", func(p *corev1.Pod) { p.Spec.HostNetwork = true }))
		advance(time.Second)
		w.wantPhase("a", corev1.PodRunning)
		w.wantPhase("none", corev1.PodRunning)
		for _, c := range w.rt.Specs() {
			at := slices.IndexFunc(c.Mounts, func(m runtime.Mount) bool { return m.ContainerPath == hostsPath })
			if c.Name == "own" || c.Pod.Name == "none" {
				if at >= 0 {
					t.Errorf("%s of %s: mounts %+v", c.Name, c.Pod.Name, c.Mounts)
				}
				continue
			}
			if at < 0 {
				t.Errorf("%s: mounts %+v", c.Name, c.Mounts)
				continue
			}
			text, err := os.ReadFile(c.Mounts[at].HostPath)
			if err != nil || !strings.HasPrefix(string(text), string(machine)) ||
				!strings.HasSuffix(string(text), "\n# Entries added by HostAliases.\n10.1.2.3\tone.example\ttwo.example\nfd00::1\tsix.example\n") {
				t.Errorf("hosts %q, %v", text, err)
			}
		}
	})
}

// TestOwnName: a pod with a host name of its own finds it in /etc/hosts, with its domain if it has a
// subdomain. A machine that cannot mount runs the container without.
func TestOwnName(t *testing.T) {
	machine, err := os.ReadFile(hostsPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	long := strings.Repeat("a", 60)
	override := "db.example.com"
	alias := []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"one.example"}}}
	for _, tt := range []struct {
		name, pod string
		spec      corev1.PodSpec
		ips       []string
		want      string // behind the machine's; empty if there is no mount
		optional  bool
	}{
		{"name", "web", corev1.PodSpec{}, []string{"10.0.0.1"}, "10.0.0.1\tweb\n", true},
		{"two addresses", "web", corev1.PodSpec{Subdomain: "sub"}, []string{"10.0.0.1", "fd00::1"}, "10.0.0.1\tweb.sub.ns.svc.cluster.local\tweb\nfd00::1\tweb.sub.ns.svc.cluster.local\tweb\n", true},
		{"no address", "web", corev1.PodSpec{Hostname: "www"}, nil, "127.0.0.1\twww\n", true},
		{"long name", long + "bcd-e", corev1.PodSpec{}, []string{"10.0.0.1"}, "10.0.0.1\t" + long + "bcd\n", true},
		{"override", "web", corev1.PodSpec{Subdomain: "sub", HostnameOverride: &override}, []string{"10.0.0.1"}, "10.0.0.1\tdb.example.com\n", true},
		{"aliases", "web", corev1.PodSpec{HostAliases: alias}, []string{"10.0.0.1"}, "10.0.0.1\tweb\n\n# Entries added by HostAliases.\n10.1.2.3\tone.example\n", false},
		{"the machine's", "web", corev1.PodSpec{HostNetwork: true}, []string{"10.0.0.1"}, "", false},
		{"the machine's with aliases", "web", corev1.PodSpec{HostNetwork: true, HostAliases: alias}, []string{"10.0.0.1"}, "\n# Entries added by HostAliases.\n10.1.2.3\tone.example\n", false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: tt.pod, Namespace: "ns"}, Spec: tt.spec}
		c := runtime.Container{TerminationLog: filepath.Join(t.TempDir(), "log")}
		if err := addHosts(pod, tt.ips, &c); err != nil || (len(c.Mounts) == 1) != (tt.want != "") {
			t.Errorf("%s: mounts %+v, %v", tt.name, c.Mounts, err)
			continue
		}
		if tt.want == "" {
			continue
		}
		text, err := os.ReadFile(c.Mounts[0].HostPath)
		if own, ok := strings.CutPrefix(string(text), string(machine)); err != nil || !ok || own != tt.want && own != "\n"+tt.want || c.Mounts[0].Optional != tt.optional {
			t.Errorf("%s: optional %v, %q, %v", tt.name, c.Mounts[0].Optional, text, err)
		}
	}
	c := runtime.Container{TerminationLog: filepath.Join(t.TempDir(), "log"), Mounts: []runtime.Mount{{ContainerPath: "/etc/", ReadOnly: true}}}
	if err := addHosts(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, nil, &c); err != nil || len(c.Mounts) != 1 {
		t.Errorf("in a read-only /etc: mounts %+v, %v", c.Mounts, err)
	}
}

// TestHostsWithoutWritePermission: a container whose user is the agent's may take the permission to write
// from its /etc/hosts. The next one gets its own.
func TestHostsWithoutWritePermission(t *testing.T) {
	dir := t.TempDir()
	done := make(chan error)
	go func() {
		goruntime.LockOSThread() // it ends with the thread
		if os.Geteuid() == 0 {
			// The kernel judges this thread's use of files as that of nobody.
			const nobody = 65534
			if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, nobody, nobody)); err != nil {
				done <- err
				return
			}
			if _, err := unix.SetfsuidRetUid(nobody); err != nil {
				done <- err
				return
			}
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "ns"}}
		c := runtime.Container{TerminationLog: filepath.Join(dir, "log")}
		err := addHosts(pod, nil, &c)
		if err == nil {
			err = os.Chmod(c.Mounts[0].HostPath, 0o444)
		}
		if err == nil {
			err = addHosts(pod, nil, &runtime.Container{TerminationLog: c.TerminationLog})
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
