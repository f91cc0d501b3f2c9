// The help topics: each command that they show is run against a cluster, or named with the
// reason why it is not.

package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/e2e/await"
	"github.com/hawser-project/hawser/e2e/document"
)

// notRun are the commands of topics that TestTopics does not run, by how they begin, and why.
// Those of servers and agents have their flags and files checked all the same.
var notRun = map[string]string{
	"apt install ./hawser_*.deb":       "needs a Debian that boots: make dist-check",
	"apt install ./hawser-agent_*.deb": "needs a Debian that boots: make dist-check",
	"editor /etc/hawser/server.env":    "needs a Debian that boots: make dist-check",
	"editor /etc/hawser/agent.env":     "needs a Debian that boots: make dist-check",
	"systemctl enable --now hawser-":   "needs a Debian that boots: make dist-check",
	"skopeo copy oci-archive:":         "needs a registry of images",
	"ctr images import ":               "needs an image: make dist-check makes it",
	"podman load --input ":             "needs an image: make dist-check makes it",
	"hawser bench":                     "takes minutes; TestReadme runs a short one",
	"hawser fleet --dir .hawser ":      "takes minutes; TestFleet runs fleets",
	"tunbench run ":                    "is a program that is not part of Hawser",
	"hawser up --dir /tmp/b ":          "waits for tunbench, which is not part of Hawser",
	"hawser server --data-dir DIR ":    "needs a store on three machines; TestTwoServers runs it",
	"hawser-agent --server https://a:": "needs three servers; TestTwoServers runs it",
	"hawser server drain ":             "ends the server; TestServerDrain runs it",
	"hawser server --route-through ":   "is one more server; TestEgressSelector runs it",
	"hawser server --load-balancer":    "needs an address of documents; TestCloud runs it",
	"hawser server --kubeconfig hub":   "is one more server; TestReadme runs it",
	"hawser kubectl proxy --server ":   "needs a hub beside the cluster; TestBeside runs it",
	"hawser-ccm --kubeconfig ":         "needs a cloud; TestCloudControllerInPod runs it",
	"hawser server --ssh-user ":        "needs nodes in SSH mode; TestSSH runs it",
	"hawser ssh pin ":                  "needs nodes in SSH mode; TestSSH runs it",
	"hawser ssh unpin ":                "needs nodes in SSH mode; TestSSH runs it",
	"hawser-agent --server https://20": "needs a kubelet, or SSH mode; TestKubeletRidesTheTunnel and TestSSH run it",
	"hawser-agent --shutdown-grace-":   "needs systemd-logind; TestMachineShutdown runs it",
}

// maxNotRun only ever goes down: a new command of a topic is run.
const maxNotRun = 25

// foregroundTopics are the commands that stay in the foreground, by how they begin, and what
// they have printed then.
var foregroundTopics = map[string]string{
	"hawser kubectl logs -f clock":              " UTC ",
	"hawser kubectl proxy --port 8001 ":         "Starting to serve",
	"hawser-agent --server https://hub.example": "msg=connected",
	"hawser-agent --allow-target ":              "msg=connected",
}

// refusals are the commands that say, and end with an error, that something is refused.
var refusals = map[string]string{
	"hawser explain dial node-1:22": "Verdict  policy refuses:",
}

// beginning returns the value of the key of a table that a command begins with.
func beginning(table map[string]string, command string) (key, value string) {
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if strings.HasPrefix(command, key) {
			return key, table[key]
		}
	}
	return "", ""
}

// shown returns the commands of a topic, each as it is printed: a line with those that it goes on in, and
// with its here-document.
func shown(d document.Document) []string {
	var all []string
	for _, b := range d.Blocks() {
		for len(b.Text) > 0 {
			command := firstCommand.FindString(b.Text)
			b.Text = strings.TrimPrefix(b.Text, command)
			if len(document.Commands(command)) > 0 {
				all = append(all, command)
			}
		}
	}
	return all
}

// firstCommand finds the lines of the first command of a text.
var firstCommand = regexp.MustCompile(`\A(?:[^\n]*<<'YAML'\n(?s:.*?)\nYAML\n|(?:[^\n]*\\\n)*[^\n]*\n?)`)

// TestTopics runs what the help topics show, in the order of their names.
func TestTopics(t *testing.T) {
	t.Parallel()
	r, values := topicReader(t)
	used := map[string]bool{}
	for _, d := range document.All(t, "..")[1:] {
		for _, command := range shown(d) {
			t.Run(filepath.Base(d.Path)+" "+strings.Join(strings.Fields(command), " "), func(t *testing.T) {
				filled := values(d.Path, command)
				key, why := beginning(notRun, command)
				used[key] = true
				if why != "" {
					r.checks(t, filled)
					return
				}
				key, until := beginning(foregroundTopics, command)
				used[key] = true
				if until != "" {
					r.foreground(t, strings.TrimSpace(filled), until)
					return
				}
				key, refusal := beginning(refusals, command)
				used[key] = true
				r.run(t, filled, refusal)
			})
		}
	}
	for _, table := range []map[string]string{notRun, foregroundTopics, refusals} {
		for key := range table {
			if !used[key] {
				t.Errorf("no topic shows a command that begins with %q", key)
			}
		}
	}
	if len(notRun) > maxNotRun {
		t.Errorf("%d commands are not run, more than %d", len(notRun), maxNotRun)
	}
	tests := testNames(t)
	for key, why := range notRun {
		for _, name := range regexp.MustCompile(`\bTest\w+`).FindAllString(why, -1) {
			if !tests[name] {
				t.Errorf("%q: there is no %s", key, name)
			}
		}
	}
}

// topicReader starts the cluster of a reader, with what the topics take for granted. values puts
// what it has into a command of a topic.
func topicReader(t *testing.T) (r reader, values func(topic, command string) string) {
	t.Helper()
	r = newcomer(t)
	c := &cluster{dir: filepath.Join(r.dir, ".hawser"), port: await.FreePort(t)}
	c.start(t, "--nodes", "3")
	const kubectl = "#!/bin/sh\nexec hawser kubectl \"$@\"\n"
	must(t, os.WriteFile(filepath.Join(r.dir, "kubectl"), []byte(kubectl), 0o700)) //nolint:gosec // it is run
	r.env[0] = "PATH=" + r.dir + ":" + strings.TrimPrefix(r.env[0], "PATH=")
	self, err := os.Executable()
	must(t, err)
	c.mustKubectl(t, webOf(self, await.FreePort(t)), "apply", "-f", "-")
	c.mustKubectl(t, "", "wait", "-n", "shop", "--for=condition=Ready", "pod/web", "--timeout", "60s")
	t.Cleanup(func() { c.mustKubectl(t, "", "delete", "deployments,daemonsets,pods", "--all", "-A", "--now") })
	_, client := bin(t)
	join := c.joinCommand(t, filepath.Join(client, "hawser"))[1:]
	flags := map[string]string{}
	for i := 0; i+1 < len(join); i += 2 {
		flags[join[i]] = join[i+1]
	}
	must(t, os.WriteFile(filepath.Join(r.dir, "token"), []byte(flags["--token"]), 0o600))
	const (
		apart  = "--node-name edge-1 --data-dir edge-1" // keeps an agent off this machine
		noPods = " --register-schedulable=false"        // which would stay when the agent has ended
	)
	here := strings.NewReplacer(
		"https://hub.example:6443", flags["--server"], "https://hub.example.net:8132", flags["--server"]+noPods,
		"FILE", "token "+apart, "sha256:HEX", flags["--discovery-token-ca-cert-hash"],
		"edge-1 edge-2", "node-1 node-2", "DIR", ".hawser", "HUB", "127.0.0.1", "--port 8001", "--port "+strconv.Itoa(await.FreePort(t)),
		"etcd-ca.crt", ".hawser/pki/ca.crt", "etcd.crt", ".hawser/pki/admin.crt", "etcd.key", ".hawser/pki/admin.key",
		"/etc/hawser/id_ed25519", ".hawser/pki/admin.key",
	)
	return r, func(topic, command string) string {
		command = here.Replace(command)
		if topic == "auth/nodekeys/identities.md" { // whose node is not one any more afterwards
			command = strings.ReplaceAll(command, "node-1", "node-3")
		}
		more := ""
		if strings.HasPrefix(command, "hawser-agent ") {
			more = strings.Join(join, " ") + " " + apart + noPods
		}
		return strings.Replace(command, "…", more, 1)
	}
}

// webOf returns the namespaces that topics speak of, and a Service web with a pod behind it.
func webOf(program string, port int) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[
		{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"work"}},
		{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"shop"}},
		{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop"},
		 "spec":{"selector":{"app":"web"},"ports":[{"port":80,"targetPort":%[2]d}]}},
		{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","namespace":"shop","labels":{"app":"web"}},
		 "spec":{"nodeName":"node-1","containers":[{"name":"main","image":"none","command":["/e2e/%[4]s"],"volumeMounts":[{"name":"test","mountPath":"/e2e"}],"env":[{"name":%[3]q,"value":"echo-server :%[2]d"}],
		  "ports":[{"containerPort":%[2]d}]}],"volumes":[{"name":"test","hostPath":{"path":%[1]q}}]}}]}`,
		filepath.Dir(program), port, roleEnv, filepath.Base(program))
}

// run runs a command in the directory of the reader. It has to succeed, or to say a refusal.
func (r reader) run(t *testing.T, command, refusal string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", "umask 022\n"+command)
	cmd.Dir, cmd.Env = r.dir, r.env
	cmd.Stdin = strings.NewReader("exit\n") // for a shell in a pod
	out, err := cmd.CombinedOutput()
	if (err == nil) != (refusal == "") || !strings.Contains(string(out), refusal) {
		t.Errorf("%s\n%v, want %q\n%s", command, err, refusal, out)
	}
}

// checks has a server or an agent that is not run check its flags and files.
func (r reader) checks(t *testing.T, command string) {
	t.Helper()
	words := strings.Fields(command)
	if words[0] == "hawser-agent" || words[0] == "hawser-ccm" || len(words) > 2 && words[0] == "hawser" && words[1] == "server" && words[2] != "drain" {
		r.run(t, strings.TrimSpace(command)+" --print-config", "")
	}
}

// testNames returns the names of the tests of the module.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for _, dir := range []string{".", "../cmd/fleet"} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		must(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			must(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
				names[string(m[1])] = true
			}
		}
	}
	return names
}
