// A control plane of Kubernetes' own programs, set up as kubeadm does it, and a hub beside
// it. The tests are skipped without the programs: make kubernetes builds them.

package e2e

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
)

// A kubeAPI is a kube-apiserver with a kube-controller-manager, on an etcd of three members.
type kubeAPI struct {
	*besideHub
	ca    *pkitest.Authority // of servers, clients and kubelets
	flags []string           // of the API server, but for the egress selector
}

// startKubeAPI runs one until the test ends. The hub beside it has its roles and is not
// started.
func startKubeAPI(t *testing.T) *kubeAPI {
	t.Helper()
	for _, name := range []string{"kube-apiserver", "kube-controller-manager"} {
		if _, err := os.Stat(filepath.Join(*kubernetesDir, name)); *kubernetesDir == "" || err != nil {
			t.Skipf("SKIPPED: no %s (-e2e.kubernetes): make kubernetes builds it, and runs this test", name)
		}
	}
	flags, log := auditFlags(t)
	st := startStore(t)
	c := &cluster{dir: shortTempDir(t), port: await.FreePort(t), out: &lines{}}
	k := &kubeAPI{besideHub: newBeside(t, c, log), ca: pkitest.New(t, "kubernetes")}
	k.flags = append(append(flags, st.flags()...), k.issueAll(t)...)
	t.Cleanup(func() { // after the agents
		for _, pid := range k.shims() {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if t.Failed() {
			t.Log(k.logs())
			if b, err := os.ReadFile(k.data + ".log"); err == nil {
				t.Logf("--- hub\n%s", b[max(0, len(b)-6000):])
			}
		}
	})
	var err error
	c.rest, err = clientcmd.BuildConfigFromFlags("", c.kubeconfig())
	must(t, err)
	c.rest.QPS, c.rest.Burst = 200, 400
	c.client, err = kubernetes.NewForConfig(c.rest)
	must(t, err)
	k.serve(t)
	k.manage(t)
	k.admit(t)
	k.grant(t)
	eventually(t, "pods may be made", func() error {
		_, err := k.client.CoreV1().ServiceAccounts("default").Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return k
}

// issueAll writes the keys of the control plane, and returns the flags that name them.
func (k *kubeAPI) issueAll(t *testing.T) []string {
	t.Helper()
	dir := filepath.Join(k.dir, "pki")
	must(t, os.Mkdir(dir, 0o700))
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"ca.crt", "kubelet-ca.crt"} {
		must(t, os.WriteFile(file(name), k.ca.PEM(), 0o600))
	}
	must(t, os.WriteFile(file("ca.key"), pkitest.KeyPEM(t, k.ca.Key), 0o600))
	accounts := pkitest.NewKey(t)
	public, err := x509.MarshalPKIXPublicKey(accounts.Public())
	must(t, err)
	must(t, os.WriteFile(file("sa.key"), pkitest.KeyPEM(t, accounts), 0o600))
	must(t, os.WriteFile(file("sa.pub"), pkitest.PEM("PUBLIC KEY", public), 0o600))
	front := pkitest.New(t, "front-proxy-ca")
	must(t, os.WriteFile(file("front-proxy-ca.crt"), front.PEM(), 0o600))
	client := func(name string, groups ...string) *x509.Certificate {
		c := pkitest.NodeClient("")
		c.Subject = pkix.Name{CommonName: name, Organization: groups}
		return c
	}
	serving := pkitest.NodeServing("", "127.0.0.1", "10.96.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	serving.Subject = pkix.Name{CommonName: "kube-apiserver"}
	issue(t, dir, "apiserver", k.ca, serving)
	chain, err := os.ReadFile(file("apiserver.crt"))
	must(t, err)
	leaf, _ := pem.Decode(chain) // kubeadm's has no authority after it
	must(t, os.WriteFile(file("apiserver.crt"), pem.EncodeToMemory(leaf), 0o600))
	issue(t, dir, "kubelet-client", k.ca, client("kube-apiserver-kubelet-client", "kubeadm:cluster-admins"))
	issue(t, dir, "front-proxy-client", front, client("front-proxy-client"))
	for name, cert := range map[string]*x509.Certificate{
		"admin": client("kubernetes-admin", "system:masters"), "controller-manager": client("system:kube-controller-manager"),
	} {
		issue(t, dir, name, k.ca, cert)
		conf := kubeconfigOf(clientcmdapi.Cluster{Server: "https://127.0.0.1:" + strconv.Itoa(k.cluster.port), CertificateAuthority: file("ca.crt")}, file(name+".crt"), file(name+".key"))
		must(t, clientcmd.WriteToFile(conf, filepath.Join(k.dir, name+".kubeconfig")))
	}
	return []string{
		"--tls-cert-file=" + file("apiserver.crt"), "--tls-private-key-file=" + file("apiserver.key"), "--client-ca-file=" + file("ca.crt"),
		"--kubelet-client-certificate=" + file("kubelet-client.crt"), "--kubelet-client-key=" + file("kubelet-client.key"),
		"--proxy-client-cert-file=" + file("front-proxy-client.crt"), "--proxy-client-key-file=" + file("front-proxy-client.key"),
		"--requestheader-client-ca-file=" + file("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client", "--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-key-file=" + file("sa.pub"), "--service-account-signing-key-file=" + file("sa.key"),
	}
}

// serve runs the API server, with what a test has more for it, and waits until it is ready.
func (k *kubeAPI) serve(t *testing.T, more ...string) {
	t.Helper()
	args := append([]string{
		filepath.Join(*kubernetesDir, "kube-apiserver"), "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(k.cluster.port),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--enable-bootstrap-token-auth=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-cluster-ip-range=10.96.0.0/12",
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--cert-dir=" + filepath.Join(k.dir, "apiserver"),
	}, k.flags...)
	began := time.Now()
	run(t, append(args, more...), filepath.Join(k.dir, "server"))
	pid := k.pid(t, "server")
	t.Cleanup(func() { // told to end, it waits a minute for those who watch
		if _, ok := processesOf(k.dir)[pid]; ok {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	eventually(t, "kube-apiserver is ready", func() error {
		if !alive(k.pid(t, "server")) {
			t.Fatal("kube-apiserver has ended")
		}
		_, err := k.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context())
		return err
	})
	k.starting = append(k.starting, [2]time.Time{began, time.Now()})
}

// serveAnew ends the API server and runs it with other flags beside its own.
func (k *kubeAPI) serveAnew(t *testing.T, more ...string) {
	t.Helper()
	k.kill(t, "server")
	k.serve(t, more...)
}

// manage runs the controllers.
func (k *kubeAPI) manage(t *testing.T) {
	t.Helper()
	file := func(name string) string { return filepath.Join(k.dir, "pki", name) }
	conf := filepath.Join(k.dir, "controller-manager.kubeconfig")
	run(t, []string{
		filepath.Join(*kubernetesDir, "kube-controller-manager"), "--kubeconfig=" + conf, "--authentication-kubeconfig=" + conf, "--authorization-kubeconfig=" + conf,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(await.FreePort(t)), "--leader-elect=false", "--controllers=*,bootstrapsigner,tokencleaner",
		"--use-service-account-credentials=true", "--service-account-private-key-file=" + file("sa.key"), "--root-ca-file=" + file("ca.crt"),
		"--cluster-signing-cert-file=" + file("ca.crt"), "--cluster-signing-key-file=" + file("ca.key"), "--cert-dir=" + filepath.Join(k.dir, "manager"),
	}, filepath.Join(k.dir, "manager"))
}

// admit makes what kubeadm init leaves for nodes that join.
func (k *kubeAPI) admit(t *testing.T) {
	t.Helper()
	k.mustKubectl(t, kubeadmRoles, "apply", "--server-side", "-f", "-")
	info := clientcmdapi.NewConfig()
	info.Clusters[""] = &clientcmdapi.Cluster{Server: k.rest.Host, CertificateAuthorityData: k.ca.PEM()}
	text, err := clientcmd.Write(*info)
	must(t, err)
	_, err = k.client.CoreV1().ConfigMaps("kube-public").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": string(text)},
	}, metav1.CreateOptions{})
	must(t, err)
}

// adopts starts an agent that knows the hub's address, a token, and the hash that kubeadm
// prints.
func (k *kubeAPI) adopts(t *testing.T, name string, flags ...string) {
	t.Helper()
	under, _ := bin(t)
	dir := filepath.Join(k.dir, "nodes", name)
	must(t, os.MkdirAll(dir, 0o700))
	run(t, append(append([]string{filepath.Join(under, "hawser-agent"), "--node-name", name, "--data-dir", dir}, k.toHub(t)...), flags...), filepath.Join(dir, "agent"))
}

// toHub are the flags by which an agent joins, as hawser prints them. What the cluster
// publishes is signed with the token by then.
func (k *kubeAPI) toHub(t *testing.T) []string {
	t.Helper()
	under, _ := bin(t)
	words := k.joinCommand(t, filepath.Join(under, "hawser"), "--server", fmt.Sprintf("https://%s:%d", hubHost, k.port))
	id, _, _ := strings.Cut(words[slices.Index(words, "--token")+1], ".")
	info, err := k.client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
	must(t, err)
	if info.Data["jws-kubeconfig-"+id] == "" {
		t.Error("the cluster has not signed what it publishes with a token that is there to be used")
	}
	return words[1:]
}

// kubeadmRoles are who may ask for a certificate, what is approved, and who may read how
// the cluster is reached.
const kubeadmRoles = `
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: "kubeadm:cluster-admins"}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "kubeadm:cluster-admins"}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: "kubeadm:kubelet-bootstrap"}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:kubeadm:default-node-token"}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: "kubeadm:node-autoapprove-bootstrap"}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers:kubeadm:default-node-token"}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: "kubeadm:node-autoapprove-certificate-rotation"}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:nodes"}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: Role, metadata: {name: "kubeadm:bootstrap-signer-clusterinfo", namespace: kube-public}, rules: [{apiGroups: [""], resources: [configmaps], resourceNames: [cluster-info], verbs: [get]}]}
---
{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, metadata: {name: "kubeadm:bootstrap-signer-clusterinfo", namespace: kube-public}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: "kubeadm:bootstrap-signer-clusterinfo"},
 subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:anonymous"}]}
`
