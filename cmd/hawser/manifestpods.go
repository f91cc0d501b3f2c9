// hawser manifest server and hawser manifest agent: the pods of a hub and of its agents.

package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hawser-project/hawser/agent"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/cmd/internal/setup"
)

const (
	// hubKubeconfig is by what a hub in a pod reaches the API: its service account.
	hubKubeconfig = `apiVersion: v1
kind: Config
clusters:
- name: here
  cluster:
    server: https://kubernetes.default.svc
    certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt
users:
- name: hub
  user:
    tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token
contexts:
- name: here
  context: {cluster: here, user: hub}
current-context: here
`
	hubUser    = 65532 // nobody's on the machine
	agentName  = "hawser-agent"
	agentToken = "hawser-agent-token"
)

// A podManifest is the flags of both commands.
type podManifest struct {
	namespace, image string
	static           bool
	addresses        []string // of the hub
	replicas         int32    // of the hub
	kubeconfig       string   // of a static pod of the hub
	servers          []string // for agents: the hubs
	caHash           string   // for agents
	allow            []string // for agents: --allow-target
}

// add adds the flags that both have. The pods run program.
func (m *podManifest) add(program string, cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.StringVarP(&m.namespace, "namespace", "n", hubSystem, "namespace of the pods")
	f.StringVar(&m.image, "image", "", "image with "+program+" in its PATH, such as make dist makes (required)")
	f.BoolVar(&m.static, "static-pod", false, "a pod for a kubelet's directory of manifests in place of objects for kubectl")
	return cmd
}

func newManifestServer() *cobra.Command {
	var m podManifest
	cmd := m.add("hawser", &cobra.Command{
		Use: "server", Short: "The hub as a StatefulSet and a Service, or as a static pod of each of the control plane's machines",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := m.checkHub(); err != nil {
				return err
			}
			if m.static {
				return printObjects(cmd.OutOrStdout(), m.staticHub())
			}
			return printObjects(cmd.OutOrStdout(), m.hub()...)
		},
	})
	cmd.Flags().StringSliceVar(&m.addresses, "address", nil, "names and addresses at which agents reach the hub, for its certificate")
	cmd.Flags().Int32Var(&m.replicas, "replicas", 1, "how many hubs; a static pod is one on each machine that has it")
	cmd.Flags().StringVar(&m.kubeconfig, "kubeconfig", "/etc/kubernetes/hawser.conf", "with --static-pod: kubeconfig on that machine")
	return cmd
}

// check refuses what both commands cannot use. The pods run program.
func (m *podManifest) check(program string) error {
	if m.image == "" {
		return fmt.Errorf("--image is required: an image with %s in its PATH", program)
	}
	return cmp.Or(checkImage(m.image), checkNamespace(m.namespace))
}

func (m *podManifest) checkHub() error {
	if err := cmp.Or(m.check("hawser"), checkSANs("--address", m.addresses)); err != nil {
		return err
	}
	if m.replicas < 1 || m.replicas > maxHubs {
		return fmt.Errorf("--replicas %d: want 1 to %d", m.replicas, maxHubs)
	}
	if m.static && m.replicas > 1 {
		return fmt.Errorf("--replicas %d has no effect with --static-pod: there is a pod on each machine that has the manifest", m.replicas)
	}
	return nil
}

// command is the hub's, but for what differs between pods.
func (m *podManifest) command(args ...string) []string {
	all := append([]string{"hawser", "server", fmt.Sprintf("--secure-port=%d", besidePort), fmt.Sprintf("--health-port=%d", healthPort)}, args...)
	if len(m.addresses) > 0 {
		all = append(all, "--tls-san="+strings.Join(m.addresses, ","))
	}
	return all
}

// container is the hub's.
func (m *podManifest) container(command []string, mounts ...corev1.VolumeMount) corev1.Container {
	probe := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: intstr.FromInt32(healthPort), Scheme: corev1.URISchemeHTTPS,
		}}}
	}
	return corev1.Container{
		Name: "hub", Image: m.image, Command: command, VolumeMounts: mounts,
		Ports: []corev1.ContainerPort{
			{Name: "tunnel", ContainerPort: besidePort},
			{Name: "tunnel-quic", ContainerPort: besidePort, Protocol: corev1.ProtocolUDP},
			{Name: "health", ContainerPort: healthPort},
		},
		LivenessProbe: probe("/livez"), ReadinessProbe: probe("/readyz"), SecurityContext: confined(),
	}
}

// confined is a container that may write to its volumes only, and has no capability.
func confined() *corev1.SecurityContext {
	no, yes := false, true
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

// asRoot is a pod that writes to directories of the machine, whatever user its image names.
func asRoot() *corev1.PodSecurityContext {
	root := int64(0)
	return &corev1.PodSecurityContext{RunAsUser: &root, RunAsGroup: &root, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
}

// hub is a StatefulSet: a hub keeps its name and its keys, and has a directory of its own.
func (m *podManifest) hub() []runtime.Object {
	labels, user, yes := map[string]string{"app": hubAccount}, int64(hubUser), true
	// At each mount a kubelet opens all that is in a volume to the group. The hub's directory
	// is for its user alone, so that is to be done at the first mount, when it is empty.
	once := corev1.FSGroupChangeOnRootMismatch
	meta := metav1.ObjectMeta{Namespace: m.namespace, Name: hubAccount, Labels: labels}
	return []runtime.Object{
		&corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"kubeconfig": hubKubeconfig}},
		&appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{
			Replicas: &m.replicas, ServiceName: hubAccount, PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("64Mi")}},
			}}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				ServiceAccountName: hubAccount, Containers: []corev1.Container{m.hubContainer()},
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user, FSGroup: &user, FSGroupChangePolicy: &once,
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
					MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, LabelSelector: &metav1.LabelSelector{MatchLabels: labels},
				}},
				Volumes: []corev1.Volume{
					{Name: "kubeconfig", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: hubAccount}}}},
				},
			}},
		}},
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, Selector: labels, Ports: []corev1.ServicePort{
			{Name: "tunnel", Port: besidePort, TargetPort: intstr.FromString("tunnel")},
			{Name: "tunnel-quic", Port: besidePort, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromString("tunnel-quic")},
			{Name: "connect", Port: connectPort, TargetPort: intstr.FromString("connect")},
		}}},
	}
}

// hubContainer is that of a pod of several, which other hubs reach at its own address.
func (m *podManifest) hubContainer() corev1.Container {
	c := m.container(m.command("--kubeconfig=/etc/hawser/kubeconfig", "--data-dir=/var/lib/hawser/hub", "--server-id=$(POD_NAME)", "--advertise-address=$(POD_IP)"),
		corev1.VolumeMount{Name: "kubeconfig", MountPath: "/etc/hawser", ReadOnly: true}, corev1.VolumeMount{Name: "data", MountPath: "/var/lib/hawser"})
	c.Ports = append(c.Ports, corev1.ContainerPort{Name: "connect", ContainerPort: connectPort})
	for _, v := range [][2]string{{"POD_NAME", "metadata.name"}, {"POD_IP", "status.podIP"}} {
		c.Env = append(c.Env, corev1.EnvVar{Name: v[0], ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: v[1]}}})
	}
	return c
}

// staticHub is on the machine of an API server, which reaches it by either unix socket.
func (m *podManifest) staticHub() *corev1.Pod {
	container := m.container(m.command("--kubeconfig="+m.kubeconfig, "--data-dir=/var/lib/hawser/hub", "--connect-port=0", "--connect-uds=/run/hawser/connect.sock", "--konnectivity-uds=/run/hawser/konnectivity.sock"),
		corev1.VolumeMount{Name: "kubeconfig", MountPath: m.kubeconfig, ReadOnly: true},
		corev1.VolumeMount{Name: "data", MountPath: "/var/lib/hawser"}, corev1.VolumeMount{Name: "run", MountPath: "/run/hawser"})
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: hubAccount}, Spec: corev1.PodSpec{
		HostNetwork: true, PriorityClassName: "system-node-critical", Containers: []corev1.Container{container}, SecurityContext: asRoot(),
		Volumes: []corev1.Volume{
			hostPath("kubeconfig", m.kubeconfig, corev1.HostPathFile), hostPath("data", "/var/lib/hawser", corev1.HostPathDirectoryOrCreate),
			hostPath("run", "/run/hawser", corev1.HostPathDirectoryOrCreate),
		},
	}}
}

func hostPath(name, path string, kind corev1.HostPathType) corev1.Volume {
	return corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path, Type: &kind}}}
}

func newManifestAgent() *cobra.Command {
	var m podManifest
	cmd := m.add("hawser-agent", &cobra.Command{
		Use: "agent", Short: "Agents beside the kubelets of a cluster, as a DaemonSet or a static pod",
		Long: "Prints agents that take a hub's streams to the kubelet of their machine. The DaemonSet finds a bootstrap\n" +
			"token in Secret " + agentToken + ", key token; the static pod in /etc/hawser/token.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := m.checkAgent(); err != nil {
				return err
			}
			if m.static {
				return printObjects(cmd.OutOrStdout(), m.staticAgent())
			}
			return printObjects(cmd.OutOrStdout(), m.agents())
		},
	})
	cmd.Flags().StringSliceVar(&m.servers, "server", nil, "URL of the hub, https://HOST:PORT, or of several (required)")
	cmd.Flags().StringVar(&m.caHash, "discovery-token-ca-cert-hash", "", "hash of the cluster's authority, sha256:HEX (required)")
	cmd.Flags().StringSliceVar(&m.allow, "allow-target", nil, "what else than the kubelet the server may reach at these nodes (hawser-agent --allow-target), such as the range of services")
	return cmd
}

func (m *podManifest) checkAgent() error {
	if err := m.check("hawser-agent"); err != nil {
		return err
	}
	if len(m.servers) == 0 {
		return errors.New("--server is required: https://HOST:PORT, the address of the hub")
	}
	for _, server := range m.servers {
		if _, err := setup.ServerAddress(server); err != nil {
			return fmt.Errorf("--server %w, the address of the hub", err)
		}
	}
	if pins, err := bootstrap.ParsePins(m.caHash); err != nil || len(pins) == 0 {
		return fmt.Errorf("--discovery-token-ca-cert-hash %q: want sha256:HEX with 64 digits, as kubeadm token create --print-join-command prints it", m.caHash)
	}
	if _, err := agent.ParseTargets(m.allow); err != nil {
		return fmt.Errorf("--allow-target: %w", err)
	}
	return nil
}

// agent is the pod of one. Its data directory is the machine's: the name is its key's.
func (m *podManifest) agent(name string, token corev1.VolumeSource) corev1.PodSpec {
	container := corev1.Container{
		Name: "agent", Image: m.image,
		Command: []string{
			"hawser-agent", "--server=" + strings.Join(m.servers, ","), "--discovery-token-ca-cert-hash=" + m.caHash, "--token-file=/etc/hawser/token",
			"--data-dir=/var/lib/hawser-agent/data", "--node-name=" + name, "--kubelet=https://127.0.0.1:10250",
		},
		SecurityContext: confined(),
		VolumeMounts:    []corev1.VolumeMount{{Name: "token", MountPath: "/etc/hawser", ReadOnly: true}, {Name: "data", MountPath: "/var/lib/hawser-agent"}},
	}
	if len(m.allow) > 0 {
		container.Command = append(container.Command, "--allow-target="+strings.Join(m.allow, ","))
	}
	return corev1.PodSpec{
		HostNetwork: true, PriorityClassName: "system-node-critical", Containers: []corev1.Container{container}, SecurityContext: asRoot(),
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Volumes: []corev1.Volume{
			{Name: "token", VolumeSource: token}, hostPath("data", "/var/lib/hawser-agent", corev1.HostPathDirectoryOrCreate),
		},
	}
}

func (m *podManifest) agents() *appsv1.DaemonSet {
	labels, no, optional, mode := map[string]string{"app": agentName}, false, true, int32(0o400)
	spec := m.agent("$(NODE_NAME)", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: agentToken, Optional: &optional, DefaultMode: &mode}})
	spec.AutomountServiceAccountToken = &no // it has a node's certificate
	spec.Containers[0].Env = []corev1.EnvVar{{Name: "NODE_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}}}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: agentName, Labels: labels}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec},
	}}
}

// staticAgent is for a machine whose host name is its node's.
func (m *podManifest) staticAgent() *corev1.Pod {
	directory := corev1.HostPathDirectory
	spec := m.agent("", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/hawser", Type: &directory}})
	c := &spec.Containers[0]
	for i, arg := range c.Command {
		if arg == "--node-name=" { // the default is the host name
			c.Command = append(c.Command[:i], c.Command[i+1:]...)
			break
		}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: agentName}, Spec: spec}
}
