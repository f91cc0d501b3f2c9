// What a server and an agent cost when nothing happens, and how long they take
// to be there. The figures are metrics of the benchmarks: make bench.

package e2e

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/hawser-project/hawser/e2e/await"
)

// settle is how long a program is left alone before its memory is read.
const settle = 20 * time.Second

// BenchmarkServerReady measures from the start of hawser server on an empty
// directory to its log line msg=ready, and its memory when idle.
func BenchmarkServerReady(b *testing.B) {
	if raceFlag != "" {
		b.Skip("SKIPPED: the race detector multiplies time and memory")
	}
	under, _ := bin(b)
	var ready time.Duration
	var rss int64
	for b.Loop() {
		dir := filepath.Join(b.TempDir(), "data")
		began := time.Now()
		cmd := exec.Command(filepath.Join(under, "hawser"), "server", "--data-dir", dir, "--bind-address", "127.0.0.1",
			"--secure-port", strconv.Itoa(await.FreePort(b)), "--connect-port", "0")
		stop := startReady(b, cmd)
		ready += time.Since(began)
		b.StopTimer()
		<-time.After(settle)
		rss += residentBytes(b, cmd.Process.Pid)
		stop()
		b.StartTimer()
	}
	b.ReportMetric(ready.Seconds()*1e3/float64(b.N), "ms/ready")
	b.ReportMetric(float64(rss)/float64(b.N)/(1<<20), "MiB-RSS")
}

// maxUpReady is the mark for BenchmarkUpReady.
const maxUpReady = 3 * time.Second

// BenchmarkUpReady measures from the start of hawser up in an empty directory until it says that
// the cluster is ready, with a node, and fails beyond the mark. A cluster ends with the benchmark:
// -benchtime 1x.
func BenchmarkUpReady(b *testing.B) {
	if raceFlag != "" {
		b.Skip("SKIPPED: the race detector multiplies time and memory")
	}
	bin(b) // builds it
	var ready time.Duration
	for b.Loop() {
		began := time.Now()
		startUp(b, "--nodes", "1")
		ready += time.Since(began)
	}
	mean := ready / time.Duration(b.N)
	b.ReportMetric(float64(mean.Milliseconds()), "ms/ready")
	if mean > maxUpReady {
		b.Errorf("ready after %v, more than %v", mean, maxUpReady)
	}
}

// startReady starts cmd and returns once it has logged msg=ready.
func startReady(b *testing.B, cmd *exec.Cmd) (stop func()) {
	b.Helper()
	stderr, err := cmd.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	sc := bufio.NewScanner(stderr)
	for sc.Scan() && !strings.Contains(sc.Text(), "msg=ready") {
	}
	drained := make(chan struct{})
	go func() {
		for sc.Scan() {
		}
		close(drained)
	}()
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-drained
		_ = cmd.Wait()
	}
}

// BenchmarkIdleAgent reports what the agent of a node without pods holds in
// memory, and the size of its program.
func BenchmarkIdleAgent(b *testing.B) {
	if raceFlag != "" {
		b.Skip("SKIPPED: the race detector multiplies time and memory")
	}
	under, _ := bin(b)
	fi, err := os.Stat(filepath.Join(under, "hawser-agent"))
	if err != nil {
		b.Fatal(err)
	}
	var rss int64
	for b.Loop() {
		c := startUp(b, "--nodes", "1")
		b.StopTimer()
		<-time.After(settle)
		rss += residentBytes(b, c.pid(b, "node-1"))
		b.StartTimer()
	}
	b.ReportMetric(float64(rss)/float64(b.N)/(1<<20), "MiB-RSS")
	b.ReportMetric(float64(fi.Size())/1e6, "MB-binary")
}

// residentBytes reads VmRSS.
func residentBytes(b testing.TB, pid int) int64 {
	b.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, line := range strings.Split(string(status), "\n") {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmRSS:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return kib << 10
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

// BenchmarkLeases measures renewals of a node's Lease, one after the other, over TLS and
// by its certificate, as a kubelet sends them. The server is that of hawser up; that the
// node has a session costs 10 ms a second beside it.
func BenchmarkLeases(b *testing.B) {
	if raceFlag != "" {
		b.Skip("SKIPPED: the race detector multiplies time")
	}
	c := startUp(b, "--nodes", "1")
	c.rest.QPS, c.rest.ContentType = -1, runtime.ContentTypeProtobuf
	leases, server := c.asNode(b, "node-1").CoordinationV1().Leases("kube-node-lease"), c.pid(b, "server")
	var lease *coordinationv1.Lease
	eventually(b, "the node has a Lease", func() (err error) {
		lease, err = leases.Get(b.Context(), "node-1", metav1.GetOptions{})
		return err
	})
	before := processorTime(b, server)
	for b.Loop() {
		now := metav1.NowMicro()
		lease.Spec.RenewTime = &now
		renewed, err := leases.Update(b.Context(), lease, metav1.UpdateOptions{})
		if apierrors.IsConflict(err) { // the agent renews it, too, every ten seconds
			renewed, err = leases.Get(b.Context(), "node-1", metav1.GetOptions{})
		}
		must(b, err)
		lease = renewed
	}
	b.ReportMetric(float64((processorTime(b, server)-before).Microseconds())/float64(b.N), "server-CPU-µs/PUT")
}

// processorTime is what a process has used, in steps of 10 ms.
func processorTime(b testing.TB, pid int) time.Duration {
	b.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(b, err)
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have spaces in it
	var sum time.Duration
	for _, ticks := range strings.Fields(rest)[11:13] { // user and system
		n, err := strconv.Atoi(ticks)
		must(b, err)
		sum += time.Duration(n) * 10 * time.Millisecond
	}
	return sum
}
