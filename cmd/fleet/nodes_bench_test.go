package fleet

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/tunnel/qmux"
)

// The size that the figures of the help topic figures-scale are of takes minutes:
//
//	go test ./cmd/fleet -run '^$' -bench Nodes -benchtime 1x -fleet.nodes 2000
var (
	nodes     = flag.Int("fleet.nodes", 200, "how many nodes BenchmarkNodes simulates")
	pods      = flag.Int("fleet.pods", 10, "how many pods each gets; with 0 it ends once all were cut and have come back")
	weightOf  = flag.String("fleet.weight", string(Light), "their weight")
	graceFlag = flag.Duration("fleet.grace", 0, "node-monitor-grace-period of the server, if not the default")
	profiles  = flag.String("fleet.profiles", "", "directory for profiles of the server's heap and goroutines once all have joined, of its CPU while they do, and of its CPU and allocations then")
)

// The marks, for one server on two cores that it shares with the fleet. They are of
// fleets of markedNodes or more: what a server costs by itself is in the figures of fewer.
const (
	markedNodes = 1000
	joinMark    = 10_000.0 / 300 // joins a second: 10,000 nodes in 5 min
	memoryMark  = 500            // KiB resident a node, 45 s after all have joined; 411 to 539 were measured
	backMark    = time.Minute    // until all are Ready and have a session, after all were cut
)

const (
	// leaseRate is that of 10,000 nodes which renew every ten seconds, to which the
	// cost of fewer is scaled up.
	leaseRate = 1000
	// leaseTime is how long lease renewals are watched. By its end the server has given back the
	// memory that joining took.
	leaseTime = 45 * time.Second
)

// BenchmarkNodes shows what a fleet of nodes with pods costs the server: to join,
// to be there, to renew leases; how long the node lifecycle controller takes to
// look at all of them, and how soon it finds out that some are gone.
func BenchmarkNodes(b *testing.B) {
	for b.Loop() {
		benchmarkNodes(b, *nodes)
	}
}

func benchmarkNodes(b *testing.B, n int) {
	b.Helper()
	var args []string
	if *graceFlag > 0 {
		args = append(args, "--node-monitor-grace-period", graceFlag.String())
	}
	s := startServer(b, args...)
	s.trim(b)
	empty, own, before := s.usage(b), usageOf(b, os.Getpid()), s.requests(b)
	profiled := s.profile(b, "cpu", "profile?seconds=40")
	began := time.Now()
	f, stop := s.startFleet(b, Config{Nodes: n, Zones: min(n, 4), Weight: Weight(*weightOf), Transport: qmux.Transport()})
	took := time.Since(began)
	<-profiled
	there := s.usage(b)
	rate := float64(n) / took.Seconds()
	b.Logf("join: %d nodes in %v, %.1f/s, %v of the server's CPU, %v of the fleet's", n, took.Round(time.Millisecond), rate,
		there.cpu-empty.cpu, usageOf(b, os.Getpid()).cpu-own.cpu)
	b.ReportMetric(rate, "joins/s")
	b.ReportMetric(1000*(there.cpu-empty.cpu).Seconds()/float64(n), "server-CPU-ms/join")
	s.logRequests(b, before, n)
	s.benchLeases(b, n)
	Trim()
	s.trim(b)
	there = s.usage(b)
	mine := usageOf(b, os.Getpid())
	each := float64(there.rss-empty.rss) / float64(n) / 1024
	b.Logf("memory: server %d MiB, fleet %d MiB", there.rss>>20, mine.rss>>20)
	s.logMemory(b)
	b.ReportMetric(each, "server-KiB/node")
	b.ReportMetric(float64(mine.rss-own.rss)/float64(n)/1024, "fleet-KiB/node")
	<-s.profile(b, "heap", "heap?gc=1")
	<-s.profile(b, "goroutines", "goroutine")
	back := s.benchCut(b, f)
	if n >= markedNodes && (rate < joinMark || each > memoryMark || back > backMark) {
		b.Errorf("%.1f joins/s, %.0f KiB a node, all back after %v; the marks are %.1f, %d, %v", rate, each, back, joinMark, memoryMark, backMark)
	}
	if *pods > 0 {
		s.benchPods(b, f, n**pods)
		s.benchReaction(b, f)
	}
	stop()
}

// benchCut cuts the connections of all nodes at once and shows how soon each has a
// session again, and is Ready.
func (s *site) benchCut(b *testing.B, f *Fleet) time.Duration {
	b.Helper()
	all := make([]int, len(f.members))
	for i := range all {
		all[i] = i
	}
	began := time.Now()
	f.Apply(one(Cut, true, all...))
	eventually(b, "all have a session and are Ready", func() error {
		if n, c := f.Connected(), f.Counts(); n < len(all) || c.Ready < len(all) {
			return fmt.Errorf("%d connected, %s", n, c)
		}
		return nil
	})
	took := time.Since(began)
	b.Logf("cut: all %d nodes have a session again and are Ready after %v", len(all), took.Round(time.Millisecond))
	b.ReportMetric(took.Seconds(), "back-s")
	return took
}

// profile reads one of the server's profiles into a file, if that was asked for, and
// closes what it returns when it has.
func (s *site) profile(b *testing.B, name, what string) <-chan struct{} {
	b.Helper()
	done := make(chan struct{})
	if *profiles == "" {
		close(done)
		return done
	}
	path, query, _ := strings.Cut(what, "?")
	go func() {
		defer close(done)
		r := s.api.Discovery().RESTClient().Get().AbsPath("/debug/pprof/" + path)
		if key, value, ok := strings.Cut(query, "="); ok {
			r = r.Param(key, value)
		}
		text, err := r.DoRaw(b.Context())
		if err == nil {
			err = os.WriteFile(filepath.Join(*profiles, name), text, 0o600)
		}
		if err != nil {
			b.Error(err)
		}
	}()
	return done
}

// benchLeases shows what n nodes cost that do nothing but be there: they renew their
// leases, write a status now and then, and keep their sessions.
func (s *site) benchLeases(b *testing.B, n int) {
	b.Helper()
	allocs := s.profile(b, "leases-allocs", "allocs?seconds=40")
	profiled := s.profile(b, "leases-cpu", "profile?seconds=40")
	before, count, revision := s.usage(b), s.metric(b, leaseUpdates), s.revision(b)
	began := time.Now()
	<-time.After(leaseTime)
	<-allocs
	<-profiled
	took := time.Since(began)
	cpu, renewals, writes := s.usage(b).cpu-before.cpu, s.metric(b, leaseUpdates)-count, s.revision(b)-revision
	if renewals == 0 {
		b.Fatal("no lease was renewed")
	}
	cores := cpu.Seconds() / took.Seconds()
	b.Logf("leases: %.0f renewals/s take %.2f cores of the server; %d a second would take %.2f", renewals/took.Seconds(), cores, leaseRate, cores*leaseRate*took.Seconds()/renewals)
	b.ReportMetric(cores*leaseRate*took.Seconds()/renewals, "server-cores@1000leases/s")
	stored := s.stored(b)
	b.Logf("store: %.3f writes a second and node, %d KiB of files a node", float64(writes)/took.Seconds()/float64(n), stored/n>>10)
	b.ReportMetric(float64(stored)/float64(n)/1024, "store-KiB/node")
}

// revision is the number of writes to the store so far.
func (s *site) revision(b *testing.B) int64 {
	b.Helper()
	list, err := s.api.CoreV1().Namespaces().List(b.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		b.Fatal(err)
	}
	n, err := strconv.ParseInt(list.ResourceVersion, 10, 64)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

// stored is what the files of the store hold, in bytes.
func (s *site) stored(b *testing.B) int {
	b.Helper()
	sum := 0
	err := filepath.WalkDir(filepath.Join(s.data, "etcd"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			sum += int(info.Size())
		}
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	return sum
}

const (
	leaseUpdates = `apiserver_request_body_size_bytes_count{group="coordination.k8s.io",resource="leases",verb="update"}`
	passes       = "node_collector_update_all_nodes_health_duration_seconds_count"
	passTime     = "node_collector_update_all_nodes_health_duration_seconds_sum"
)

// benchPods puts pods on the nodes and then looks at how long a pass over all
// nodes takes.
func (s *site) benchPods(b *testing.B, f *Fleet, n int) {
	b.Helper()
	began := time.Now()
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error {
			_, err := s.api.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)},
				Spec: corev1.PodSpec{
					NodeName: f.members[i%len(f.members)].name, AutomountServiceAccountToken: new(false),
					Containers: []corev1.Container{{Name: "c", Image: "image", Command: []string{"server"}}},
				},
			}, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	eventually(b, "all pods run", func() error {
		list, err := s.api.CoreV1().Pods("default").List(b.Context(), metav1.ListOptions{FieldSelector: "status.phase!=Running", Limit: 1})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("some do not")
		}
		return err
	})
	took := time.Since(began)
	b.Logf("pods: %d run after %v", n, took.Round(time.Millisecond))
	b.ReportMetric(float64(n)/took.Seconds(), "pods/s")
	count, sum := s.metric(b, passes), s.metric(b, passTime)
	const watched = 3
	eventually(b, "passes over all nodes", func() error {
		if now := s.metric(b, passes); now < count+watched {
			return fmt.Errorf("%v after %v", now, count)
		}
		return nil
	})
	each := (s.metric(b, passTime) - sum) / (s.metric(b, passes) - count)
	b.Logf("a pass over %d nodes with %d pods takes %.0f ms; the server has %d MiB", len(f.members), n, 1000*each, s.usage(b).rss>>20)
	b.ReportMetric(1000*each, "pass-ms")
	if each > 1 {
		b.Errorf("a pass over all nodes takes %.1f s, want less than one", each)
	}
}

// benchReaction kills a twentieth of the nodes and shows how long after its last
// heartbeat, a renewal of the lease or a status, each is Unknown. The API tells that time in full seconds,
// rounded down.
func (s *site) benchReaction(b *testing.B, f *Fleet) {
	b.Helper()
	victims := max(1, len(f.members)/20)
	hit := make([]int, victims)
	for i := range hit {
		hit[i] = i * len(f.members) / victims
	}
	f.Apply(one(Kill, true, hit...))
	f.until(b, "the killed nodes are Unknown", func(c Counts) bool { return c.Unknown >= victims })
	var worst time.Duration
	for _, i := range hit {
		name := f.members[i].name
		for _, c := range s.node(b, name).Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown {
				last := s.renewed(b, name)
				if c.LastHeartbeatTime.After(last) { // a status counts as well
					last = c.LastHeartbeatTime.Time
				}
				worst = max(worst, c.LastTransitionTime.Sub(last))
			}
		}
	}
	b.Logf("reaction: %d of %d nodes killed, all Unknown at most %v after their last heartbeat", victims, len(f.members), worst.Round(time.Millisecond))
	b.ReportMetric(worst.Seconds(), "reaction-s")
	f.Apply(one(Kill, false, hit...))
	began := time.Now()
	f.until(b, "all are Ready again", func(c Counts) bool { return c.Ready == len(f.members) })
	b.Logf("all Ready again %v after they were let", time.Since(began).Round(time.Millisecond))
}

// requests are those that the server has answered, by verb and resource.
func (s *site) requests(tb testing.TB) map[string]float64 {
	tb.Helper()
	sums := make(map[string]float64)
	for line := range strings.Lines(s.metrics(tb)) {
		if !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		labels := make(map[string]string)
		for _, m := range labelOf.FindAllStringSubmatch(line, -1) {
			labels[m[1]] = m[2]
		}
		kind := labels["verb"] + " " + labels["resource"]
		if sub := labels["subresource"]; sub != "" {
			kind += "/" + sub
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		if err != nil {
			tb.Fatal(err)
		}
		sums[kind] += v
	}
	return sums
}

var labelOf = regexp.MustCompile(`(\w+)="([^"]*)"`)

// logRequests shows how many requests each of n nodes took since before, if most of them took one.
func (s *site) logRequests(b *testing.B, before map[string]float64, n int) {
	b.Helper()
	var lines []string
	sum := 0.0
	for kind, v := range s.requests(b) {
		each := (v - before[kind]) / float64(n)
		if sum += each; each > 0.5 {
			lines = append(lines, fmt.Sprintf("%.1f %s", each, kind))
		}
	}
	slices.Sort(lines)
	b.Logf("requests a node: %.1f: %s", sum, strings.Join(lines, ", "))
}

// logMemory shows what the server's memory is taken by, in MiB.
func (s *site) logMemory(b *testing.B) {
	b.Helper()
	of := func(name string) float64 { return s.metric(b, "go_memstats_"+name+"_bytes") / (1 << 20) }
	alloc, inuse := of("heap_alloc"), of("heap_inuse")
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.pid), "status"))
	if err != nil {
		b.Fatal(err)
	}
	files := regexp.MustCompile(`RssFile:\s*(.*)`).FindSubmatch(status)
	b.Logf("memory of the server: %.0f MiB of heap, %.0f between objects, %.0f free and not given back, %.0f of stacks; %s of pages of files",
		alloc, inuse-alloc, of("heap_idle")-of("heap_released"), of("stack_inuse"), files[1])
}

// metrics are all of the server's.
func (s *site) metrics(tb testing.TB) string {
	tb.Helper()
	text, err := s.api.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// metric reads one of the server's.
func (s *site) metric(tb testing.TB, name string) float64 {
	tb.Helper()
	for line := range strings.Lines(s.metrics(tb)) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				tb.Fatal(err)
			}
			return v
		}
	}
	return 0
}

// trim has the server collect its garbage, as it does by itself later.
func (s *site) trim(tb testing.TB) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	if _, err := s.api.Discovery().RESTClient().Get().AbsPath("/debug/pprof/heap").Param("gc", "1").DoRaw(ctx); err != nil {
		tb.Logf("the server's memory has garbage in it: %v", err)
	}
}

// A usage is what a process has used and holds.
type usage struct {
	cpu time.Duration
	rss int // bytes
}

func (s *site) usage(tb testing.TB) usage { tb.Helper(); return usageOf(tb, s.pid) }

func usageOf(tb testing.TB, pid int) usage {
	tb.Helper()
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		tb.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ") // the name may have spaces in it
	fields := strings.Fields(rest)
	const user, system, resident, tick = 11, 12, 21, 10 * time.Millisecond
	var u usage
	for _, at := range []int{user, system} {
		n, err := strconv.Atoi(fields[at])
		if err != nil {
			tb.Fatal(err)
		}
		u.cpu += time.Duration(n) * tick
	}
	pages, err := strconv.Atoi(fields[resident])
	if err != nil {
		tb.Fatal(err)
	}
	u.rss = pages * syscall.Getpagesize()
	return u
}
