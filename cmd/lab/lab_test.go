package lab

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/cmd/lab/emulator"
)

// listenEnv makes the test binary listen, say where, and end with its input: it
// plays a service on a node.
const listenEnv = "LAB_LISTEN"

func TestMain(m *testing.M) {
	addr, listen := os.LookupEnv(listenEnv)
	if !listen {
		goleak.VerifyTestMain(m)
		return
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(ln.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// newLab skips, loudly, where no lab can be made.
func newLab(t testing.TB, nodes int) *Lab {
	t.Helper()
	if err := CheckFaults(); err != nil {
		t.Skipf("SKIPPED: no network lab here: %v", err)
	}
	l, err := New(t.Context(), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	for i := range nodes {
		if _, err := l.AddNode(t.Context(), "node-"+string(rune('1'+i))); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// TestNodeReachesHostThroughNAT opens a connection from a node and looks at
// where it seems to come from.
func TestNodeReachesHostThroughNAT(t *testing.T) {
	l := newLab(t, 2)
	ln, err := net.Listen("tcp", net.JoinHostPort(l.HostIP(), "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := ln.(*net.TCPListener).SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(ln.Addr().String())
	for _, n := range l.nodes {
		cmd := n.Command(t.Context(), "bash", "-c", "exec 3<>/dev/tcp/"+host+"/"+port+"; echo hello from "+n.Name+" >&3; cat <&3")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err = cmd.Start(); err != nil {
			t.Fatal(err)
		}
		conn, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || line != "hello from "+n.Name+"\n" {
			t.Errorf("got %q, %v", line, err)
		}
		if from := conn.RemoteAddr().String(); !strings.HasPrefix(from, "198.18.") {
			t.Errorf("%s seems to come from %s: its own address was not hidden", n.Name, from)
		}
		_, _ = io.WriteString(conn, "and back")
		_ = conn.Close()
		answer, _ := io.ReadAll(out)
		if string(answer) != "and back" {
			t.Errorf("%s read %q", n.Name, answer)
		}
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// TestNobodyReachesANode dials a port on which the node listens: from the host,
// with a route laid by hand so that the packets do arrive at the NAT, and from
// another node. The control dial from the node itself shows that the port is open.
func TestNobodyReachesANode(t *testing.T) {
	l := newLab(t, 2)
	n := l.nodes[0]
	cmd := n.Command(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), listenEnv+"="+net.JoinHostPort("0.0.0.0", "0"))
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err = cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = stdin.Close()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	outer := n.NATIP()
	if err := run(t.Context(), "ip", "route", "add", n.IP()+"/32", "via", outer, "dev", l.bridge()); err != nil {
		t.Fatal(err)
	}
	dial := func(host string) []string {
		return []string{"timeout", "1", "bash", "-c", "exec 3<>/dev/tcp/" + host + "/" + port}
	}
	if args := dial(n.IP()); n.Command(t.Context(), args[0], args[1:]...).Run() != nil {
		t.Fatal("the node does not even reach itself")
	}
	for _, target := range []string{n.IP(), outer} {
		if run(t.Context(), dial(target)...) == nil {
			t.Errorf("the host reached %s", target)
		}
		if args := dial(target); l.nodes[1].Command(t.Context(), args[0], args[1:]...).Run() == nil {
			t.Errorf("another node reached %s", target)
		}
	}
}

// TestSameNameSweepsLeftovers makes a lab over one whose process has died.
func TestSameNameSweepsLeftovers(t *testing.T) {
	newLab(t, 1)
	second, err := New(t.Context(), t.Name())
	if err != nil {
		t.Fatalf("leftovers are in the way: %v", err)
	}
	if _, err := second.AddNode(t.Context(), "node-1"); err != nil {
		t.Fatal(err)
	}
}

// TestLabsAreApart makes a fault in one of two labs of one process.
func TestLabsAreApart(t *testing.T) {
	if err := CheckFaults(); err != nil {
		t.Skipf("SKIPPED: no network lab here: %v", err)
	}
	var labs []*Lab
	for _, name := range []string{"one", "two"} {
		// Not a subtest: both labs must live until the end.
		l, err := New(t.Context(), t.Name()+name)
		must(t, err)
		t.Cleanup(func() { must(t, l.Close(t.Context())) })
		if _, err := l.AddNode(t.Context(), "node-1"); err != nil {
			t.Fatal(err)
		}
		labs = append(labs, l)
	}
	if labs[0].HostIP() == labs[1].HostIP() {
		t.Fatalf("both labs are %s", labs[0].HostIP())
	}
	must(t, labs[0].Nodes()[0].Cut(t.Context()))
	slow := emulator.Shape{Delay: time.Millisecond}
	must(t, labs[0].Nodes()[0].Shape(t.Context(), slow, slow))
	must(t, labs[1].Nodes()[0].Shape(t.Context(), slow, slow))
	node, host := tcpPair(t, labs[1], labs[1].Nodes()[0])
	send(t, node, "unharmed")
	receive(t, host, "unharmed")
}
