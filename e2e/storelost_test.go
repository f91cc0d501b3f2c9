// Servers whose store loses one member, then its quorum, and a store that cannot be used
// from the beginning.

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
)

const (
	// writeBound is how long a write may take to fail while the store has no quorum: 15 s,
	// and some for the machine.
	writeBound = 25 * time.Second
	// roundsPerLoss is how many rounds of requests each client makes while a member is away.
	roundsPerLoss = 5
)

// TestMemberOfThreeKilled: each member of the store is killed and started again in turn,
// the leader first, under writes and logs through three servers. No request fails. Then
// two are killed: writes fail within a bound and say why, what is open goes on, and all
// is well when the members are back.
func TestMemberOfThreeKilled(t *testing.T) {
	t.Parallel()
	st := startStore(t)
	a := startUp(t, st.upArgs("--nodes=1", "--server-arg=--server-id=a")...)
	servers := []*cluster{a, a.another(t, "b", st), a.another(t, "c", st)}
	a.podWith(t, "talker", "", `,"nodeName":"node-1"`, "sh", "-c", "echo started; exec sleep 100000")
	port := await.FreePort(t)
	a.roleInPod(t, "echo", fmt.Sprintf("echo-server 127.0.0.1:%d", port))
	for _, s := range servers {
		eventually(t, "it reaches the node", func() error { return s.reaches(t, "talker") })
	}
	t.Run("one", func(t *testing.T) { testMemberKilled(t, st, servers) })
	t.Run("two", func(t *testing.T) { testQuorumLost(t, st, servers, port) })
}

func testMemberKilled(t *testing.T, st *store, servers []*cluster) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	loads := make([]*storeLoad, 0, len(servers))
	for i, s := range servers {
		l := &storeLoad{server: s, name: fmt.Sprintf("load-%d", i)}
		loads = append(loads, l)
		wg.Go(func() { l.run(ctx) })
	}
	first := st.leader(t)
	for i := range st.members {
		m := first
		if i > 0 {
			m = st.members[i]
			if m == first {
				m = st.members[0]
			}
		}
		for phase, f := range []func(){func() { m.kill(t) }, func() { m.start(t); st.healthy(t, m) }} {
			f()
			for _, l := range loads {
				until := l.rounds.Load() + roundsPerLoss
				eventually(t, fmt.Sprintf("requests go on, %s, phase %d", m.Name, phase), func() error {
					if n := l.rounds.Load(); n < until && l.failure() == nil {
						return fmt.Errorf("%d of %d rounds", n, until)
					}
					return nil
				})
			}
		}
	}
	cancel()
	wg.Wait()
	for _, l := range loads {
		if err := l.failure(); err != nil {
			t.Errorf("%s, after %d rounds: %v", l.name, l.rounds.Load(), err)
		}
		t.Logf("%s: %d rounds, none took longer than %v", l.name, l.rounds.Load(), time.Duration(l.slowest.Load()).Round(time.Millisecond))
	}
}

// A storeLoad makes, changes, reads and deletes an object through one server, and reads
// a log, again and again, until a request fails.
type storeLoad struct {
	server  *cluster
	name    string
	rounds  atomic.Int64
	slowest atomic.Int64 // nanoseconds a round has taken

	mu  sync.Mutex
	err error // guarded by mu: the first failure
}

func (l *storeLoad) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *storeLoad) run(ctx context.Context) {
	for ctx.Err() == nil {
		runningKubectl := time.Now()
		if err := l.round(context.WithoutCancel(ctx)); err != nil {
			l.mu.Lock()
			l.err = fmt.Errorf("%v after its begin: %w", time.Since(runningKubectl), err)
			l.mu.Unlock()
			return
		}
		l.slowest.Store(max(l.slowest.Load(), int64(time.Since(runningKubectl))))
		l.rounds.Add(1)
	}
}

func (l *storeLoad) round(ctx context.Context) error {
	maps := l.server.client.CoreV1().ConfigMaps("default")
	obj, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: l.name}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	obj.Data = map[string]string{"round": strconv.FormatInt(l.rounds.Load(), 10)}
	if obj, err = maps.Update(ctx, obj, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	got, err := maps.Get(ctx, l.name, metav1.GetOptions{})
	if err != nil || got.ResourceVersion != obj.ResourceVersion || got.Data["round"] != obj.Data["round"] {
		return fmt.Errorf("read %v, wrote %v: %w", got, obj, err)
	}
	if err = maps.Delete(ctx, l.name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	text, err := l.server.client.CoreV1().Pods("default").GetLogs("talker", &corev1.PodLogOptions{}).DoRaw(ctx)
	if err != nil || string(text) != "started\n" {
		return fmt.Errorf("logs: %q, %w", text, err)
	}
	return nil
}

func testQuorumLost(t *testing.T, st *store, servers []*cluster, port int) {
	says := servers[1].cat(t, "talker")
	says("before")
	conn, err := net.Dial("tcp", servers[2].forward(t, "echo", port))
	must(t, err)
	defer conn.Close()
	echoes := func(line string) {
		t.Helper()
		got := make([]byte, len(line))
		_, err := io.WriteString(conn, line)
		must(t, errors.Join(err, conn.SetReadDeadline(time.Now().Add(patience))))
		if _, err := io.ReadFull(conn, got); err != nil || string(got) != line {
			t.Fatalf("the echo says %q, %v", got, err)
		}
	}
	echoes("before")
	st.members[0].kill(t)
	st.members[1].kill(t)
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() {
			runningKubectl := time.Now()
			_, err := s.client.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("lost-%d", i)}}, metav1.CreateOptions{})
			took := time.Since(runningKubectl)
			t.Logf("server %d: %v after %v", i, err, took)
			if !apierrors.IsServiceUnavailable(err) && !apierrors.IsTimeout(err) {
				t.Errorf("a write without a quorum: %v", err)
			}
			if took > writeBound {
				t.Errorf("it took %v to fail", took)
			}
		})
	}
	says("meanwhile")
	echoes("meanwhile")
	wg.Wait()
	says("after the writes")
	echoes("after the writes")
	for _, m := range st.members[:2] {
		m.start(t)
	}
	for i, s := range servers {
		tries := 0
		eventually(t, "writes succeed again", func() error {
			tries++ // one that failed may have left its object
			return (&storeLoad{server: s, name: fmt.Sprintf("again-%d-%d", i, tries)}).round(t.Context())
		})
	}
	says("in the end")
	echoes("in the end")
	servers[2].podWith(t, "again", "", "", "sleep", "100000") // a scheduler, a node, a status
	for _, s := range servers {
		eventually(t, "it reaches the node again", func() error { return s.reaches(t, "again") })
	}
}

// TestStoreOutOfReach: a server that cannot use its store says in one line which flag is
// wrong, and ends.
func TestStoreOutOfReach(t *testing.T) {
	t.Parallel()
	st := startStore(t)
	stranger := pkitest.New(t, "stranger")
	must(t, os.WriteFile(st.file("stranger.crt"), stranger.PEM(), 0o600))
	issue(t, st.dir, "refused", stranger, pkitest.NodeClient(""))
	good := st.flags()
	nobody := fmt.Sprintf("--etcd-servers=https://127.0.0.1:%d,https://127.0.0.1:%d", await.FreePort(t), await.FreePort(t))
	fails := func(t *testing.T, name string, want []string, flags ...string) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, client := bin(t)
			args := append([]string{
				"server", "--data-dir", filepath.Join(shortTempDir(t), "d"), "--bind-address=127.0.0.1", "--secure-port", strconv.Itoa(await.FreePort(t)), "--connect-port=0",
			}, flags...)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			out, err := exec.CommandContext(ctx, filepath.Join(client, "hawser"), args...).CombinedOutput()
			if err == nil {
				t.Fatalf("it ended well: %s", out)
			}
			var last string
			for line := range strings.Lines(string(out)) {
				last = line
				if strings.HasPrefix(line, "hawser: ") && strings.Count(string(out), "hawser: ") > 1 {
					t.Errorf("said more than once: %s", out)
				}
			}
			t.Logf("%s", out)
			for _, w := range want {
				if !strings.HasPrefix(last, "hawser: ") || !strings.Contains(last, w) {
					t.Errorf("want one line about %q", w)
				}
			}
		})
	}
	t.Run("by", func(t *testing.T) {
		fails(t, "unreachable", []string{"--etcd-servers", "connection refused", "start etcd"}, append(good[1:4:4], nobody)...)
		fails(t, "authority", []string{"--etcd-cafile", "x509: ", "authority"}, good[0], "--etcd-cafile="+st.file("stranger.crt"), good[2], good[3])
		fails(t, "certificate", []string{"--etcd-certfile", "remote error: tls: ", "--trusted-ca-file"},
			good[0], good[1], "--etcd-certfile="+st.file("refused.crt"), "--etcd-keyfile="+st.file("refused.key"))
		fails(t, "no certificate", []string{"--etcd-certfile", "remote error: tls: ", "--trusted-ca-file"}, good[0], good[1])
	})
	st.members[0].kill(t)
	st.members[1].kill(t)
	t.Run("but", func(t *testing.T) {
		fails(t, "no quorum", []string{"--etcd-servers", "start more"}, good...)
	})
}
