package staticpods

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestRefused: what is wrong with a file is said by the name of the field.
func TestRefused(t *testing.T) {
	with := func(more string) string { return web + more }
	in := func(old, now string) string { return strings.Replace(web, old, now, 1) }
	container := func(more string) string { return in("image: none", "image: none, "+more) }
	annotated := func(armor string) string {
		return in("labels:", "annotations: {container.apparmor.security.beta.kubernetes.io/"+armor+"}\n  labels:")
	}
	for name, tt := range map[string]struct{ content, want string }{
		"nothing":             {"# nothing\n---\n", "is empty"},
		"no YAML":             {"{", "is no v1 Pod"},
		"no kind":             {"password: hunter2", "is no v1 Pod: kind is missing"},
		"another kind":        {"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {password: hunter2}", "but /v1, Kind=Secret"},
		"no version":          {"kind: Pod\npassword: hunter2", "apiVersion is missing"},
		"an unknown kind":     {"apiVersion: example.com/v1\nkind: Pod\n", "is no v1 Pod"},
		"two":                 {with("---\n" + web), "more than one document"},
		"no name":             {in("name: web", "generateName: web"), "metadata.name is missing"},
		"bad name":            {in("name: web", "name: ../web"), `metadata.name "../web-node-1"`},
		"bad namespace":       {in("name: web", "name: web, namespace: a/b"), ""},
		"bad label":           {in("{app: web}", "{app: 'a b'}"), "metadata.labels"},
		"AppArmor of nobody":  {annotated("nobody: runtime/default"), "container not found"},
		"no AppArmor profile": {annotated("main: mine"), `invalid AppArmor profile name: "mine"`},
		"AppArmor mismatch":   {strings.Replace(annotated("main: localhost/mine"), "image: none", "image: none, securityContext: {appArmorProfile: {type: Unconfined}}", 1), "apparmor type in annotation and field must match"},
		"no container":        {in("containers:\n  - {name: main, image: none, command: [sleep, infinity]}", "containers: []"), "spec.containers is empty"},
		"container's name":    {in("name: main", "name: ../../main"), `spec.containers[0].name "../../main"`},
		"twice":               {with("  - {name: main, image: none}\n"), "is there twice"},
		"no image":            {in("image: none", "image: ''"), "spec.containers[0].image"},
		"restart policy":      {with("  restartPolicy: Sometimes\n"), `spec.restartPolicy "Sometimes"`},
		"own policy":          {container("restartPolicy: Sometimes"), `spec.containers[0].restartPolicy "Sometimes"`},
		"init's policy":       {with("  initContainers: [{name: i, image: none, restartPolicy: Sometimes}]\n"), `spec.initContainers[0].restartPolicy "Sometimes"`},
		"rules alone":         {container("restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [1]}}]"), "without restartPolicy"},
		"rule's action":       {container("restartPolicy: Never, restartPolicyRules: [{action: Wait, exitCodes: {operator: In, values: [1]}}]"), `restartPolicyRules[0].action "Wait"`},
		"rule's codes":        {container("restartPolicy: Never, restartPolicyRules: [{action: Restart}]"), "restartPolicyRules[0].exitCodes"},
		"rule's operator":     {container("restartPolicy: Never, restartPolicyRules: [{action: Restart, exitCodes: {operator: At, values: [1]}}]"), `operator "At"`},
		"grace":               {with("  terminationGracePeriodSeconds: -1\n"), "terminationGracePeriodSeconds"},
		"mount of nothing":    {container("volumeMounts: [{name: v, mountPath: /v}]"), `"v" is no volume`},
		"hostPath":            {with("  volumes: [{name: v, hostPath: {path: /a/../b}}]\n"), "hostPath.path"},
		"port":                {container("ports: [{containerPort: 70000}]"), "ports[0]"},
		"probe":               {container("livenessProbe: {}"), "livenessProbe has no action"},
		"requests":            {container("resources: {requests: {cpu: 2}, limits: {cpu: 1}}"), "resources.requests.cpu"},
		"env":                 {container("env: [{name: 'A=B'}]"), "env[0].name"},
		"gate":                {with("  schedulingGates: [{name: g}]\n"), "schedulingGates"},
		"large":               {in("{app: web}", "{app: web}\n  annotations: {a: "+strings.Repeat("x", maxPod)+"}"), "at most"},
		"account":             {with("  serviceAccountName: builder\n"), "may not reference serviceaccounts"},
		"account's old name":  {with("  serviceAccount: builder\n"), "may not reference serviceaccounts"},
		"pull secret":         {with("  imagePullSecrets: [{name: s}]\n"), "may not reference secrets"},
		"claim":               {with("  resourceClaims: [{name: c, resourceClaimName: c}]\n"), "may not reference resourceclaims"},
		"secret":              {with("  volumes: [{name: v, secret: {secretName: s}}]\n"), "may not reference secrets"},
		"config map":          {with("  volumes: [{name: v, configMap: {name: c}}]\n"), "may not reference configmaps"},
		"volume claim":        {with("  volumes: [{name: v, persistentVolumeClaim: {claimName: c}}]\n"), "may not reference persistentvolumeclaims"},
		"ephemeral claim":     {with("  volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {}}}}]\n"), "may not reference persistentvolumeclaims"},
		"token":               {with("  volumes: [{name: v, projected: {sources: [{serviceAccountToken: {path: t}}]}}]\n"), "anything but downwardAPI"},
		"trust":               {with("  volumes: [{name: v, projected: {sources: [{clusterTrustBundle: {name: b, path: t}}]}}]\n"), "anything but downwardAPI"},
		"CSI":                 {with("  volumes: [{name: v, csi: {driver: d}}]\n"), "neither emptyDir"},
		"secret env":          {container("env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]"), "may not reference secrets"},
		"config map env":      {container("env: [{name: A, valueFrom: {configMapKeyRef: {name: s, key: k}}}]"), "may not reference configmaps"},
		"all of a secret":     {container("envFrom: [{secretRef: {name: s}}]"), "may not reference secrets"},
		"all of a config map": {container("envFrom: [{configMapRef: {name: s}}]"), "may not reference configmaps"},
		"init's secret env": {
			with("  initContainers: [{name: i, image: none, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}]}]\n"), "may not reference secrets",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := decode([]byte(tt.content), "/f", "node-1", func(string, string) {})
			if err == nil {
				t.Fatalf("it is pod %+v", p)
			}
			if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hunter2") || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// TestRestartPolicies: containers may have restart policies of their own, and rules beside them.
func TestRestartPolicies(t *testing.T) {
	const rules = "restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [42]}}, {action: RestartAllContainers, exitCodes: {operator: NotIn, values: [1]}}]"
	for _, policy := range []corev1.ContainerRestartPolicy{corev1.ContainerRestartPolicyAlways, corev1.ContainerRestartPolicyOnFailure, corev1.ContainerRestartPolicyNever} {
		content := strings.Replace(web, "image: none", fmt.Sprintf("image: none, restartPolicy: %s, %s", policy, rules), 1) +
			fmt.Sprintf("  initContainers: [{name: i, image: none, restartPolicy: %s, %s}]\n", policy, rules)
		p, err := decode([]byte(content), "/f", "node-1", func(_, what string) { t.Error(what) })
		if err != nil {
			t.Errorf("%s: %v", policy, err)
			continue
		}
		for _, c := range []corev1.Container{p.Spec.InitContainers[0], p.Spec.Containers[0]} {
			if c.RestartPolicy == nil || *c.RestartPolicy != policy || len(c.RestartPolicyRules) != 2 {
				t.Errorf("%s: %+v", policy, c)
			}
		}
	}
}

// TestAppArmorAnnotation: the container gets the field for it, by which the node refuses the pod.
func TestAppArmorAnnotation(t *testing.T) {
	var told []string
	p, err := decode([]byte(strings.Replace(web, "labels:", "annotations: {container.apparmor.security.beta.kubernetes.io/main: runtime/default}\n  labels:", 1)),
		"/f", "node-1", func(_, what string) { told = append(told, what) })
	if err != nil {
		t.Fatal(err)
	}
	if sc := p.Spec.Containers[0].SecurityContext; sc == nil || sc.AppArmorProfile == nil || sc.AppArmorProfile.Type != corev1.AppArmorProfileTypeRuntimeDefault {
		t.Errorf("the container's security context is %+v", sc)
	}
	if len(told) != 1 || !strings.Contains(told[0], `use the "appArmorProfile" field`) {
		t.Errorf("told of %q", told)
	}
}

// TestIgnored: what means nothing in a file, or is not its to say.
func TestIgnored(t *testing.T) {
	var told []string
	p, err := decode([]byte(strings.Replace(web, "labels: {app: web}", `uid: mine
  finalizers: [example.com/never]
  ownerReferences: [{apiVersion: v1, kind: Node, name: node-2, uid: u}]
  deletionTimestamp: "2020-01-01T00:00:00Z"
  annotations: {kubernetes.io/config.mirror: x, kubernetes.io/config.hash: x, kubernetes.io/config.source: api, kept: "yes"}
  colour: red`, 1)+"  nodeName: node-2\n  priorityClassName: system-node-critical\nstatus: {phase: Failed}\n"), "/f", "node-1",
		func(path, what string) { told = append(told, path+" "+what) })
	if err != nil {
		t.Fatal(err)
	}
	if len(told) != 1 || !strings.Contains(told[0], `unknown field "metadata.colour"`) {
		t.Errorf("told of %q", told)
	}
	a := p.Annotations
	if _, mirror := a[corev1.MirrorPodAnnotationKey]; mirror || a[HashAnnotation] != string(p.UID) || a[sourceAnnotation] != "file" || a["kept"] != "yes" {
		t.Errorf("annotations %v", a)
	}
	if p.UID == "mine" || len(p.Finalizers) > 0 || len(p.OwnerReferences) > 0 || p.DeletionTimestamp != nil || p.Spec.NodeName != "node-1" || p.Status.Phase != corev1.PodPending {
		t.Errorf("%+v", p)
	}
	if p.Spec.Priority == nil || *p.Spec.Priority != 2_000_001_000 {
		t.Errorf("priority %v", p.Spec.Priority)
	}
}

// TestDefaults: what a file leaves out.
func TestDefaults(t *testing.T) {
	p, err := decode([]byte(`apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  hostNetwork: true
  tolerations: [{operator: Exists, effect: NoExecute, tolerationSeconds: 3}]
  volumes:
  - {name: empty}
  - {name: down, downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}
  - {name: both, projected: {sources: [{downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}}]}}
  containers:
  - name: main
    image: none
    ports: [{containerPort: 80}]
    env: [{name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    resources: {limits: {cpu: 1, memory: 1Gi}}
    livenessProbe: {httpGet: {port: 80}}
    lifecycle: {preStop: {httpGet: {port: 80}}}
`), "/f", "node-1", func(string, string) { t.Error("unknown fields") })
	if err != nil {
		t.Fatal(err)
	}
	s, c := &p.Spec, &p.Spec.Containers[0]
	if len(s.Tolerations) != 1 || s.Tolerations[0].TolerationSeconds != nil {
		t.Errorf("tolerations %v", s.Tolerations)
	}
	if s.Volumes[0].EmptyDir == nil || *s.Volumes[1].DownwardAPI.DefaultMode != 0o644 || s.Volumes[1].DownwardAPI.Items[0].FieldRef.APIVersion != "v1" ||
		*s.Volumes[2].Projected.DefaultMode != 0o644 || s.Volumes[2].Projected.Sources[0].DownwardAPI.Items[0].FieldRef.APIVersion != "v1" {
		t.Errorf("volumes %+v", s.Volumes)
	}
	if c.Ports[0].HostPort != 80 || c.Ports[0].Protocol != corev1.ProtocolTCP || c.Env[0].ValueFrom.FieldRef.APIVersion != "v1" {
		t.Errorf("container %+v", c)
	}
	if !apiequality.Semantic.DeepEqual(c.Resources.Requests, c.Resources.Limits) || p.Status.QOSClass != corev1.PodQOSGuaranteed {
		t.Errorf("resources %v, %s", c.Resources, p.Status.QOSClass)
	}
	if l := c.LivenessProbe; l.TimeoutSeconds != 1 || l.PeriodSeconds != 10 || l.SuccessThreshold != 1 || l.FailureThreshold != 3 || l.HTTPGet.Path != "/" || l.HTTPGet.Scheme != "HTTP" {
		t.Errorf("probe %+v", l)
	}
	if h := c.Lifecycle.PreStop.HTTPGet; h.Path != "/" {
		t.Errorf("hook %+v", h)
	}
}

// FuzzDecode: whatever a file says, it is refused, or is a pod that a node can have in a
// path and in its API.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		web, "", "{", "---\n" + web + "---\n", strings.Replace(web, "name: main", "name: ../main", 1),
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"containers":[{"name":"c","image":"i","resources":{"limits":{"cpu":"1"}}}]}}`,
		"a: &a [*a]", "apiVersion: v1\nkind: PodList\nitems: []\n", web + "  volumes: [{name: v, projected: {sources: [{}]}}]\n",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := decode(data, "/f", "node-1", func(string, string) {})
		if err != nil {
			return
		}
		if len(p.UID) != 32 || len(validation.IsDNS1123Subdomain(p.Name)) > 0 || len(validation.IsDNS1123Label(p.Namespace)) > 0 || !strings.HasSuffix(p.Name, "-node-1") {
			t.Errorf("%s/%s %s", p.Namespace, p.Name, p.UID)
		}
		for _, c := range p.Spec.Containers {
			if len(validation.IsDNS1123Label(c.Name)) > 0 {
				t.Errorf("container %q", c.Name)
			}
		}
		again, err := decode(data, "/f", "node-1", func(string, string) {})
		if err != nil || again.UID != p.UID {
			t.Errorf("decoded again: %v, %v", again, err)
		}
	})
}
