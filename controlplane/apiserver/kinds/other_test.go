package kinds

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// pems returns a certificate request and a certificate, both in PEM.
func pems(t *testing.T) ([]byte, []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	req, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: req}), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
}

func TestCertificateSigningRequests(t *testing.T) {
	t.Parallel()
	type csr = *certificatesv1.CertificateSigningRequest
	request, certificate := pems(t)
	forged := slices.Clone(request)
	block, _ := pem.Decode(forged)
	block.Bytes[len(block.Bytes)-1] ^= 1
	forged = pem.EncodeToMemory(block)
	fresh := func() csr {
		return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: request, SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}, Username: "system:bootstrap:abcdef",
		}}
	}
	condition := func(types ...certificatesv1.RequestConditionType) func(csr) {
		return func(r csr) {
			for _, typ := range types {
				r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: typ, Status: "True"})
			}
		}
	}
	certify := func(r csr) { r.Status.Certificate = certificate }
	signer := func(name string) func(csr) { return func(r csr) { r.Spec.SignerName = name } }
	mutate(t, fresh, validateCertificateSigningRequest, []mutation[csr]{
		{"no request", func(r csr) { r.Spec.Request = nil }, bad(`spec.request: Invalid value: null: PEM block type must be CERTIFICATE REQUEST`)},
		{"a certificate for a request", func(r csr) { r.Spec.Request = certificate }, bad("spec.request: Invalid value")},
		{"rubbish", func(r csr) { r.Spec.Request = bytes.Replace(request, []byte("\nM"), []byte("\nA"), 1) }, bad("spec.request: Invalid value")},
		{"huge", func(r csr) { r.Spec.Request = append(slices.Clone(request), make([]byte, 16<<10)...) }, bad("spec.request: Invalid value")},
		{"forged", func(r csr) { r.Spec.Request = forged }, bad("spec.request: Invalid value")},
		{"no usages", func(r csr) { r.Spec.Usages = nil }, bad("spec.usages: Required value")},
		{"usages", func(r csr) { r.Spec.Usages = []certificatesv1.KeyUsage{"any", "any", "x"} }, bad(`spec.usages[1]: Duplicate value: "any"`, `spec.usages[2]: Unsupported value: "x"`)},
		{"no signer", signer(""), bad("spec.signerName: Required value")},
		{"own signer", signer("example.com/a.b-c"), nil},
		{"signer without path", signer("example.com"), bad("spec.signerName: Invalid value: \"example.com\": must be a fully qualified domain and path of the form 'example.com/signer-name'")},
		{"signer with two", signer("a.b/c/d"), bad("spec.signerName: Invalid value")},
		{"signer without domain", signer("a/b"), bad(`spec.signerName: Invalid value: "a": should be a domain with at least two segments`)},
		{"signer with empty path", signer("a.b/"), bad("spec.signerName: Invalid value")},
		{"signer in upper case", signer("A.b/C"), bad("spec.signerName: Invalid value", "spec.signerName: Invalid value")},
		{"old signer", signer("kubernetes.io/legacy-unknown"), bad("spec.signerName: Invalid value: \"kubernetes.io/legacy-unknown\": the legacy signerName is not allowed")},
		{"short life", func(r csr) { r.Spec.ExpirationSeconds = ptr[int32](599) }, bad("spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)")},
		{"life", func(r csr) { r.Spec.ExpirationSeconds = ptr[int32](600) }, nil},
	})
	const at = "status.conditions: Forbidden: updates may not "
	mutateUpdate(t, fresh, validateCertificateSigningRequestUpdate, []mutation[csr]{
		{"label", func(r csr) { r.Labels = map[string]string{"a": "b"} }, nil},
		{"spec", signer("a.b/c"), bad("spec: Invalid value")},
		{"approve by update", condition("Approved"), bad(at + `add a condition of type "Approved"`)},
		{"fail by update", condition("Failed"), bad(at + `add a condition of type "Failed"`)},
		{"certify by update", certify, bad("status.certificate: Forbidden: updates may not set certificate content")},
		{"own condition", condition("example.com/Seen"), nil},
	})
	mutateUpdate(t, fresh, validateCertificateSigningRequestApprovalUpdate, []mutation[csr]{
		{"approve", condition("Approved"), nil},
		{"deny", condition("Denied"), nil},
		{"both", condition("Approved", "Denied"), bad(`status.conditions: Invalid value: "": Approved and Denied conditions are mutually exclusive`)},
		{"twice", condition("Approved", "Approved"), bad(`status.conditions[1].type: Duplicate value: "Approved"`)},
		{"not quite", func(r csr) { condition("Approved")(r); r.Status.Conditions[0].Status = "False" }, bad(`status.conditions[0].status: Unsupported value: "False": supported values: "True"`)},
		{"fail by approval", condition("Failed"), bad(at + `add a condition of type "Failed"`)},
		{"certify by approval", certify, bad("status.certificate: Forbidden")},
	})
	mutateUpdate(t, fresh, validateCertificateSigningRequestStatusUpdate, []mutation[csr]{
		{"certify", certify, nil},
		{"certify with rubbish", func(r csr) { r.Status.Certificate = []byte("x") }, bad(`status.certificate: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block`)},
		{"certify with a request", func(r csr) { r.Status.Certificate = request }, bad("status.certificate: Invalid value")},
		{"fail", condition("Failed"), nil},
		{"approve by status", condition("Approved"), bad(at + `add a condition of type "Approved"`)},
	})
	done := func() csr {
		r := fresh()
		condition("Approved")(r)
		certify(r)
		return r
	}
	mutateUpdate(t, done, validateCertificateSigningRequestStatusUpdate, []mutation[csr]{
		{"certify again", func(r csr) { r.Status.Certificate = append(slices.Clone(certificate), certificate...) }, bad("status.certificate: Forbidden: updates may not modify existing certificate content")},
		{"take back", func(r csr) { r.Status.Conditions = nil }, bad(at + `remove a condition of type "Approved"`)},
		{"retell", func(r csr) { r.Status.Conditions[0].Message = "x" }, bad(at + `modify a condition of type "Approved"`)},
	})
	mutateUpdate(t, done, validateCertificateSigningRequestApprovalUpdate, []mutation[csr]{
		{"take back an approval", func(r csr) { r.Status.Conditions = nil }, bad(at + `remove a condition of type "Approved"`)},
	})
}

func TestRBAC(t *testing.T) {
	t.Parallel()
	type cr = *rbacv1.ClusterRole
	role := func() cr {
		return defaulted[rbacv1.ClusterRole](t, `{metadata: {name: r}, rules: [{verbs: [get], apiGroups: [""], resources: [pods]}, {verbs: [get], nonResourceURLs: [/healthz]}]}`)
	}
	mutate(t, role, validateClusterRole, []mutation[cr]{
		{"nothing", func(r cr) { r.Rules = nil }, nil},
		{"no verbs", func(r cr) { r.Rules[0].Verbs = nil }, bad("rules[0].verbs: Required value: verbs must contain at least one value")},
		{"no group", func(r cr) { r.Rules[0].APIGroups = nil }, bad("rules[0].apiGroups: Required value: resource rules must supply at least one api group")},
		{"no resource", func(r cr) { r.Rules[0].Resources = nil }, bad("rules[0].resources: Required value")},
		{"both", func(r cr) { r.Rules[1].Resources = []string{"pods"} }, bad("rules[1].nonResourceURLs: Invalid value")},
		{"aggregation", func(r cr) { r.AggregationRule = &rbacv1.AggregationRule{} }, bad("aggregationRule.clusterRoleSelectors: Required value")},
	})
	namespaced := role()
	check(t, validateRole(&rbacv1.Role{Rules: namespaced.Rules}), `rules[1].nonResourceURLs: Invalid value: ["/healthz"]: namespaced rules cannot apply to non-resource URLs`)

	type rb = *rbacv1.RoleBinding
	binding := func() rb {
		return defaulted[rbacv1.RoleBinding](t, `{metadata: {name: b}, roleRef: {kind: ClusterRole, name: "system:x"}, subjects: [{kind: User, name: u}, {kind: Group, name: "system:nodes"}, {kind: ServiceAccount, name: s}]}`)
	}
	mutate(t, binding, validateRoleBinding, []mutation[rb]{
		{"group of the role", func(b rb) { b.RoleRef.APIGroup = "x" }, bad("roleRef.apiGroup: Unsupported value")},
		{"kind of the role", func(b rb) { b.RoleRef.Kind = "x" }, bad(`roleRef.kind: Unsupported value: "x": supported values: "Role", "ClusterRole"`)},
		{"no role", func(b rb) { b.RoleRef.Name = "" }, bad("roleRef.name: Required value")},
		{"name of the role", func(b rb) { b.RoleRef.Name = "a/b" }, bad("roleRef.name: Invalid value")},
		{"subject", func(b rb) { b.Subjects[0] = rbacv1.Subject{Kind: "x"} }, bad("subjects[0].kind: Unsupported value", "subjects[0].name: Required value")},
		{"user of a group", func(b rb) { b.Subjects[0].APIGroup = "" }, bad("subjects[0].apiGroup: Unsupported value")},
		{"account", func(b rb) { b.Subjects[2].Name, b.Subjects[2].APIGroup = "A", "x" }, bad("subjects[2].apiGroup: Unsupported value", "subjects[2].name: Invalid value")},
	})
	mutateUpdate(t, binding, validateRoleBindingUpdate, []mutation[rb]{
		{"subjects", func(b rb) { b.Subjects = nil }, nil},
		{"role", func(b rb) { b.RoleRef.Name = "x" }, bad("roleRef: Invalid value: {\"apiGroup\":\"rbac.authorization.k8s.io\",\"kind\":\"ClusterRole\",\"name\":\"x\"}: cannot change roleRef")},
	})
	type crb = *rbacv1.ClusterRoleBinding
	cluster := func() crb {
		b := binding()
		b.Subjects[2].Namespace = "default"
		return &rbacv1.ClusterRoleBinding{RoleRef: b.RoleRef, Subjects: b.Subjects}
	}
	mutateUpdate(t, cluster, validateClusterRoleBindingUpdate, []mutation[crb]{
		{"role of a namespace", func(b crb) { b.RoleRef.Kind = "Role" }, bad("roleRef.kind: Unsupported value", "roleRef: Invalid value")},
		{"account of nowhere", func(b crb) { b.Subjects[2].Namespace = "" }, bad("subjects[2].namespace: Required value")},
	})
}

func TestStorage(t *testing.T) {
	t.Parallel()
	type sc = *storagev1.StorageClass
	class := func() sc {
		return defaulted[storagev1.StorageClass](t, `{metadata: {name: s}, provisioner: Disk.example/x, parameters: {type: ssd}}`)
	}
	mutate(t, class, validateStorageClass, []mutation[sc]{
		{"no provisioner", func(c sc) { c.Provisioner = "" }, bad("provisioner: Required value")},
		{"provisioner", func(c sc) { c.Provisioner = "a b" }, bad("provisioner: Invalid value")},
		{
			"policies", func(c sc) {
				c.ReclaimPolicy, c.VolumeBindingMode = ptr(corev1.PersistentVolumeReclaimRecycle), ptr(storagev1.VolumeBindingMode("x"))
			},
			bad("reclaimPolicy: Unsupported value", "volumeBindingMode: Unsupported value"),
		},
		{"no binding mode", func(c sc) { c.VolumeBindingMode = nil }, bad("volumeBindingMode: Required value")},
		{"parameters", func(c sc) { c.Parameters = map[string]string{"": long(256 * 1024)}; c.Parameters["a"] = "b" }, bad("parameters: Invalid value", "parameters: Too long")},
		{"topology", func(c sc) {
			c.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: "a b"}}}}
		}, bad("allowedTopologies[0].matchLabelExpressions[0].key: Invalid value", "allowedTopologies[0].matchLabelExpressions[0].values: Required value")},
		{"topologies of nothing", func(c sc) { c.AllowedTopologies = make([]corev1.TopologySelectorTerm, 4000) }, bad(`allowedTopologies[1].matchLabelExpressions: Duplicate value: ""`)},
		{"topologies that differ", func(c sc) {
			term := func(key string, values ...string) corev1.TopologySelectorTerm {
				return corev1.TopologySelectorTerm{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: key, Values: values}}}
			}
			c.AllowedTopologies = []corev1.TopologySelectorTerm{term("zone", "a"), term("zone", "a", "b"), term("zone", "ab"), term("zonea", "b"), {}}
		}, nil},
		{"topology twice", func(c sc) {
			zone := corev1.TopologySelectorLabelRequirement{Key: "zone", Values: []string{"a", "b", "a"}}
			back := corev1.TopologySelectorLabelRequirement{Key: "zone", Values: []string{"b", "a"}}
			c.AllowedTopologies = []corev1.TopologySelectorTerm{
				{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{zone}},
				{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{back}},
				{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{zone, back}},
			}
		}, bad(`allowedTopologies[0].matchLabelExpressions[0].values[2]: Duplicate value: "a"`, `allowedTopologies[1].matchLabelExpressions: Duplicate value: ""`,
			`allowedTopologies[2].matchLabelExpressions[0].values[2]: Duplicate value: "a"`, `allowedTopologies[2].matchLabelExpressions[1].key: Duplicate value: "zone"`)},
	})
	mutateUpdate(t, class, validateStorageClassUpdate, []mutation[sc]{
		{"expansion", func(c sc) { c.AllowVolumeExpansion = ptr(true) }, nil},
		{"parameters change", func(c sc) { c.Parameters = nil }, bad("parameters: Forbidden: updates to parameters are forbidden.")},
		{"the rest", func(c sc) {
			c.Provisioner, c.ReclaimPolicy, c.VolumeBindingMode = "x", ptr(corev1.PersistentVolumeReclaimRetain), ptr(storagev1.VolumeBindingWaitForFirstConsumer)
		}, bad("provisioner: Forbidden", "reclaimPolicy: Forbidden", "volumeBindingMode: Invalid value")},
	})
	type cn = *storagev1.CSINode
	node := func() cn {
		return defaulted[storagev1.CSINode](t, `{metadata: {name: n}, spec: {drivers: [{name: d.example, nodeID: n, topologyKeys: [a.b/zone], allocatable: {count: 3}}]}}`)
	}
	mutate(t, node, validateCSINode, []mutation[cn]{
		{"no drivers", func(n cn) { n.Spec.Drivers = nil }, nil},
		{"empty", func(n cn) { n.Spec.Drivers[0] = storagev1.CSINodeDriver{} }, bad("spec.drivers[0].name: Required value", "spec.drivers[0].nodeID: Required value")},
		{"twice", func(n cn) { n.Spec.Drivers = append(n.Spec.Drivers, n.Spec.Drivers[0]) }, bad("spec.drivers[1].name: Duplicate value")},
		{"long", func(n cn) { n.Spec.Drivers[0].NodeID, n.Spec.Drivers[0].Name = long(257), long(60)+".abcdef" }, bad("spec.drivers[0].name: Too long", "spec.drivers[0].nodeID: Invalid value")},
		{"count", func(n cn) { n.Spec.Drivers[0].Allocatable.Count = ptr[int32](-1) }, bad("spec.drivers[0].allocatable.count: Invalid value")},
		{"keys", func(n cn) { n.Spec.Drivers[0].TopologyKeys = []string{"a", "a"} }, bad(`spec.drivers[0].topologyKeys: Duplicate value: "a"`)},
	})
	mutateUpdate(t, node, validateCSINodeUpdate, []mutation[cn]{
		{"count changes", func(n cn) { n.Spec.Drivers[0].Allocatable = nil }, nil},
		{"driver goes", func(n cn) { n.Spec.Drivers = nil }, nil},
		{"id changes", func(n cn) { n.Spec.Drivers[0].NodeID = "m" }, bad("spec.drivers[0]: Invalid value")},
	})
	type cd = *storagev1.CSIDriver
	driver := func() cd { return defaulted[storagev1.CSIDriver](t, `{metadata: {name: d.example}}`) }
	mutateUpdate(t, driver, validateCSIDriverUpdate, []mutation[cd]{
		{
			"flags", func(d cd) { d.Spec.AttachRequired, d.Spec.PodInfoOnMount = nil, nil },
			bad("spec.attachRequired: Required value", "spec.attachedRequired: Invalid value", "spec.podInfoOnMount: Required value"),
		},
		{
			"tokens", func(d cd) {
				d.Spec.TokenRequests = []storagev1.TokenRequest{{Audience: "a"}, {Audience: "a", ExpirationSeconds: ptr[int64](1)}}
			},
			bad("spec.tokenRequests[1].audience: Duplicate value", "spec.tokenRequests[1].expirationSeconds: Invalid value"),
		},
		{"limits counted anew every five seconds", func(d cd) { d.Spec.NodeAllocatableUpdatePeriodSeconds = ptr[int64](5) }, bad("spec.nodeAllocatableUpdatePeriodSeconds: Invalid value: 5: must be greater than or equal to 10 seconds")},
		{"no tokens in secrets", func(d cd) { d.Spec.ServiceAccountTokenInSecrets = ptr(true) }, bad("spec.serviceAccountTokenInSecrets: Invalid value: true: serviceAccountTokenInSecrets is set but no tokenRequests are specified")},
		{"group policy", func(d cd) { d.Spec.FSGroupPolicy = ptr(storagev1.FSGroupPolicy("x")) }, bad("spec.fsGroupPolicy: Unsupported value")},
	})
	type va = *storagev1.VolumeAttachment
	attachment := func() va {
		return defaulted[storagev1.VolumeAttachment](t, `{metadata: {name: a}, spec: {attacher: d.example, nodeName: n, source: {persistentVolumeName: v}}}`)
	}
	mutateUpdate(t, attachment, validateVolumeAttachmentUpdate, []mutation[va]{
		{"attached", func(a va) { a.Status.Attached = true }, nil},
		{
			"nothing", func(a va) { a.Spec = storagev1.VolumeAttachmentSpec{} },
			bad("spec.attacher: Required value", "spec.nodeName: Required value", "spec.source: Required value", "spec: Invalid value"),
		},
		{"metadata", func(a va) { a.Status.AttachmentMetadata = map[string]string{"a": long(256 * 1024)} }, bad("status.attachmentMetadata: Too long")},
	})
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	type np = *networkingv1.NetworkPolicy
	policy := func() np {
		return defaulted[networkingv1.NetworkPolicy](t, `{metadata: {name: p}, spec: {podSelector: {}, ingress: [{ports: [{port: 80, endPort: 90}], from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}, {podSelector: {}, namespaceSelector: {}}]}]}}`)
	}
	in := "spec.ingress[0]"
	mutate(t, policy, validateNetworkPolicy, []mutation[np]{
		{"selector", func(p np) { p.Spec.PodSelector.MatchLabels = map[string]string{"a b": ""} }, bad("spec.podSelector.matchLabels: Invalid value")},
		{"types", func(p np) { p.Spec.PolicyTypes = []networkingv1.PolicyType{"x"} }, bad("spec.policyTypes[0]: Unsupported value")},
		{"three types", func(p np) { p.Spec.PolicyTypes = []networkingv1.PolicyType{"Ingress", "Egress", "Ingress"} }, bad("spec.policyTypes: Invalid value")},
		{
			"ports", func(p np) {
				p.Spec.Ingress[0].Ports[0] = networkingv1.NetworkPolicyPort{Protocol: ptr(corev1.Protocol("x")), Port: num(0)}
			},
			bad(in+".ports[0].port: Invalid value: 0", in+".ports[0].protocol: Unsupported value"),
		},
		{"end before port", func(p np) { p.Spec.Ingress[0].Ports[0].EndPort = ptr[int32](79) }, bad(in + ".ports[0].endPort: Invalid value: 79: must be greater than or equal to `port`")},
		{"end without port", func(p np) { p.Spec.Ingress[0].Ports[0].Port = nil }, bad(in + ".ports[0].port: Required value")},
		{"end of a name", func(p np) { p.Spec.Ingress[0].Ports[0].Port = str("http") }, bad(in + ".ports[0].endPort: Invalid value: 90: may not be specified when `port` is non-numeric")},
		{"no peer", func(p np) { p.Spec.Ingress[0].From[0] = networkingv1.NetworkPolicyPeer{} }, bad(in + ".from[0]: Required value: must specify a peer")},
		{"two peers", func(p np) { p.Spec.Ingress[0].From[0].PodSelector = &metav1.LabelSelector{} }, bad(in + ".from[0]: Forbidden: may not specify both ipBlock and another peer")},
		{
			"except", func(p np) { p.Spec.Ingress[0].From[0].IPBlock.Except = []string{"x", "11.0.0.0/16", "10.0.0.0/8"} },
			bad(in+".from[0].ipBlock.except[0]: Invalid value", in+".from[0].ipBlock.except[1]: Invalid value", in+".from[0].ipBlock.except[2]: Invalid value"),
		},
		{"no range", func(p np) { p.Spec.Ingress[0].From[0].IPBlock.CIDR = "" }, bad(in + ".from[0].ipBlock.cidr: Required value")},
		{"egress", func(p np) {
			p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{}}}}
		}, bad("spec.egress[0].to[0]: Required value")},
	})
	type ing = *networkingv1.Ingress
	ingress := func() ing {
		return defaulted[networkingv1.Ingress](t, `{metadata: {name: i}, spec: {ingressClassName: c, tls: [{hosts: ["*.a.b"], secretName: s}], rules: [{host: x.a.b, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: w, port: {number: 80}}}}]}}]}}`)
	}
	path := func(i ing) *networkingv1.HTTPIngressPath { return &i.Spec.Rules[0].HTTP.Paths[0] }
	at := "spec.rules[0].http.paths[0]"
	mutate(t, ingress, newIngress, []mutation[ing]{
		{"class twice", func(i ing) { i.Annotations = map[string]string{"kubernetes.io/ingress.class": "c"} }, nil},
		{"two classes", func(i ing) { i.Annotations = map[string]string{"kubernetes.io/ingress.class": "d"} }, bad("annotations.kubernetes.io/ingress.class: Invalid value: \"d\": must match `ingressClassName` when both are specified")},
		{"nothing", func(i ing) { i.Spec = networkingv1.IngressSpec{} }, bad("spec: Invalid value: null: either `defaultBackend` or `rules` must be specified")},
		{"host", func(i ing) { i.Spec.Rules[0].Host = "a_b" }, bad("spec.rules[0].host: Invalid value")},
		{"host an address", func(i ing) { i.Spec.Rules[0].Host = "10.0.0.1" }, bad("spec.rules[0].host: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address")},
		{"wildcard in the middle", func(i ing) { i.Spec.TLS[0].Hosts[0] = "a.*.b" }, bad("spec.tls[0].hosts[0]: Invalid value")},
		{"no paths", func(i ing) { i.Spec.Rules[0].HTTP.Paths = nil }, bad("spec.rules[0].http.paths: Required value")},
		{"no path type", func(i ing) { path(i).PathType = nil }, bad(at + ".pathType: Required value: pathType must be specified")},
		{"path type", func(i ing) { path(i).PathType = ptr(networkingv1.PathType("x")) }, bad(at + ".pathType: Unsupported value")},
		{"path", func(i ing) { path(i).Path = "a//b/.." }, bad(at+".path: Invalid value: \"a//b/..\": must be an absolute path", at+".path: Invalid value: \"a//b/..\": must not contain '//'", at+".path: Invalid value: \"a//b/..\": cannot end with '/..'")},
		{"no backend", func(i ing) { path(i).Backend.Service = nil }, bad(at + ".backend: Required value")},
		{"two backends", func(i ing) { path(i).Backend.Resource = &corev1.TypedLocalObjectReference{} }, bad(at + ".backend: Invalid value: \"\": cannot set both resource and service backends")},
		{"port", func(i ing) { path(i).Backend.Service.Port = networkingv1.ServiceBackendPort{} }, bad(at + ".backend.service: Required value: port name or number is required")},
		{"port twice", func(i ing) { path(i).Backend.Service.Port.Name = "a" }, bad(at + ".backend.service: Invalid value: \"\": cannot set both port name & port number")},
		{
			"default backend", func(i ing) {
				i.Spec.DefaultBackend = &networkingv1.IngressBackend{Resource: &corev1.TypedLocalObjectReference{}}
			},
			bad("spec.defaultBackend.resource.kind: Required value", "spec.defaultBackend.resource.name: Required value"),
		},
	})
	mutate(t, ingress, validateIngressStatus, []mutation[ing]{
		{
			"address", func(i ing) {
				i.Status.LoadBalancer.Ingress = []networkingv1.IngressLoadBalancerIngress{{IP: "x"}, {Hostname: "10.0.0.1"}}
			},
			bad("status.loadBalancer.ingress[0].ip: Invalid value", "status.loadBalancer.ingress[1].hostname: Invalid value"),
		},
	})
	type ic = *networkingv1.IngressClass
	class := func() ic {
		return defaulted[networkingv1.IngressClass](t, `{metadata: {name: c}, spec: {controller: example.com/c, parameters: {kind: K, name: n}}}`)
	}
	mutateUpdate(t, class, validateIngressClassUpdate, []mutation[ic]{
		{"controller", func(c ic) { c.Spec.Controller = "example.com/d" }, bad("spec.controller: Invalid value: \"example.com/d\": field is immutable")},
		{"no parameters", func(c ic) { c.Spec.Parameters = nil }, nil},
		{"parameters elsewhere", func(c ic) { c.Spec.Parameters.Namespace = ptr("x") }, bad("spec.parameters.namespace: Forbidden")},
		{"parameters nowhere", func(c ic) { c.Spec.Parameters.Scope = ptr("Namespace") }, bad("spec.parameters.namespace: Required value")},
		{"scope", func(c ic) { c.Spec.Parameters.Scope = ptr("x") }, bad("spec.parameters.scope: Unsupported value")},
	})
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	type eps = *corev1.Endpoints
	fresh := func() eps {
		return defaulted[corev1.Endpoints](t, `{metadata: {name: e}, subsets: [{addresses: [{ip: 10.0.0.1, nodeName: n}], ports: [{port: 80}]}]}`)
	}
	mutate(t, fresh, validateEndpoints, []mutation[eps]{
		{"none", func(e eps) { e.Subsets = nil }, nil},
		{"nobody", func(e eps) { e.Subsets[0].Addresses = nil }, bad("subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`")},
		{
			"address", func(e eps) {
				e.Subsets[0].Addresses[0] = corev1.EndpointAddress{IP: "127.0.0.1", Hostname: "A", NodeName: ptr("B")}
			},
			bad("subsets[0].addresses[0].hostname: Invalid value", "subsets[0].addresses[0].ip: Invalid value: \"127.0.0.1\": may not be in the loopback range", "subsets[0].addresses[0].nodeName: Invalid value"),
		},
		{"no address", func(e eps) { e.Subsets[0].NotReadyAddresses = []corev1.EndpointAddress{{}} }, bad("subsets[0].notReadyAddresses[0].ip: Invalid value")},
		{
			"ports", func(e eps) { e.Subsets[0].Ports = []corev1.EndpointPort{{}, {Name: "a", Port: 1, Protocol: "TCP"}} },
			bad("subsets[0].ports[0].name: Required value", "subsets[0].ports[0].port: Invalid value: 0", "subsets[0].ports[0].protocol: Required value"),
		},
	})
	type slice = *discoveryv1.EndpointSlice
	freshSlice := func() slice {
		return defaulted[discoveryv1.EndpointSlice](t, `{metadata: {name: e}, addressType: IPv4, endpoints: [{addresses: [10.0.0.1], nodeName: n}], ports: [{name: http, port: 80}]}`)
	}
	mutate(t, freshSlice, validateEndpointSlice, []mutation[slice]{
		{"type", func(s slice) { s.AddressType = "" }, bad("addressType: Required value")},
		{"family", func(s slice) { s.Endpoints[0].Addresses = []string{"fd00::1"} }, bad(`endpoints[0].addresses[0]: Invalid value: "fd00::1": must be an IPv4 address`)},
		{"nobody", func(s slice) { s.Endpoints[0].Addresses = nil }, bad("endpoints[0].addresses: Required value: must contain at least 1 address")},
		{"too many", func(s slice) { s.Endpoints = make([]discoveryv1.Endpoint, 1001) }, bad("endpoints: Too many: 1001: must have at most 1000 items")},
		{"too many of one", func(s slice) { s.Endpoints[0].Addresses = make([]string, 101) }, bad("endpoints[0].addresses: Too many: 101: must have at most 100 items")},
		{"names", func(s slice) { s.AddressType = "FQDN"; s.Endpoints[0].Addresses = []string{"a.b", "a_b.c"} }, bad("endpoints[0].addresses[1]: Invalid value")},
		{
			"hints", func(s slice) {
				s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: make([]discoveryv1.ForZone, 9), ForNodes: make([]discoveryv1.ForNode, 9)}
			},
			bad("endpoints[0].hints.forNodes: Too many", "endpoints[0].hints.forZones: Too many"),
		},
		{
			"ports", func(s slice) {
				s.Ports = append(s.Ports, s.Ports[0], discoveryv1.EndpointPort{Protocol: ptr(corev1.ProtocolTCP), Port: ptr[int32](0)})
			},
			bad(`ports[1].name: Duplicate value: "http"`, "ports[2].port: Invalid value: 0"),
		},
	})
	mutateUpdate(t, freshSlice, validateEndpointSliceUpdate, []mutation[slice]{
		{"type changes", func(s slice) { s.AddressType, s.Endpoints = "IPv6", nil }, bad(`addressType: Invalid value: "IPv6": field is immutable`)},
	})
}

func TestPolicyPriorityAndRuntime(t *testing.T) {
	t.Parallel()
	type pdb = *policyv1.PodDisruptionBudget
	budget := func() pdb {
		return defaulted[policyv1.PodDisruptionBudget](t, `{metadata: {name: b}, spec: {minAvailable: 50%, selector: {matchLabels: {a: b}}}}`)
	}
	mutate(t, budget, validatePodDisruptionBudget, []mutation[pdb]{
		{"both", func(b pdb) { b.Spec.MaxUnavailable = num(1) }, bad("spec: Invalid value")},
		{"neither", func(b pdb) { b.Spec.MinAvailable = nil }, nil},
		{"percent", func(b pdb) { b.Spec.MinAvailable = str("101%") }, bad("spec.minAvailable: Invalid value: \"101%\": must not be greater than 100%")},
		{"negative", func(b pdb) { b.Spec.MinAvailable, b.Spec.MaxUnavailable = nil, num(-1) }, bad("spec.maxUnavailable: Invalid value: -1")},
		{"policy", func(b pdb) { b.Spec.UnhealthyPodEvictionPolicy = ptr(policyv1.UnhealthyPodEvictionPolicyType("x")) }, bad("spec.unhealthyPodEvictionPolicy: Unsupported value")},
	})
	mutate(t, budget, validatePodDisruptionBudgetStatus, []mutation[pdb]{
		{"numbers", func(b pdb) { b.Status.DisruptionsAllowed, b.Status.ExpectedPods = -1, -1 }, bad("status.disruptionsAllowed: Invalid value", "status.expectedPods: Invalid value")},
	})
	type pc = *schedulingv1.PriorityClass
	class := func() pc { return defaulted[schedulingv1.PriorityClass](t, `{metadata: {name: c}, value: 1000000000}`) }
	mutate(t, class, validatePriorityClass, []mutation[pc]{
		{"too high", func(c pc) { c.Value++ }, bad("value: Forbidden: maximum allowed value of a user defined priority is 1000000000")},
		{"negative", func(c pc) { c.Value = -5 }, nil},
		{"system", func(c pc) { c.Name, c.Value = "system-node-critical", 2_000_001_000 }, nil},
		{"system with another value", func(c pc) { c.Name = "system-node-critical" }, bad("metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only")},
		{"system by default", func(c pc) { c.Name, c.Value, c.GlobalDefault = "system-cluster-critical", 2_000_000_000, true }, bad("metadata.name: Forbidden")},
		{"own system class", func(c pc) { c.Name = "system-x" }, bad("metadata.name: Forbidden")},
		{"preemption", func(c pc) { c.PreemptionPolicy = ptr(corev1.PreemptionPolicy("x")) }, bad("preemptionPolicy: Unsupported value")},
	})
	mutateUpdate(t, class, validatePriorityClassUpdate, []mutation[pc]{
		{"value", func(c pc) { c.Value = 1 }, bad("value: Forbidden: may not be changed in an update.")},
		{"policy", func(c pc) { c.PreemptionPolicy = ptr(corev1.PreemptNever) }, bad("preemptionPolicy: Invalid value")},
	})
	type rc = *nodev1.RuntimeClass
	rclass := func() rc {
		return defaulted[nodev1.RuntimeClass](t, `{metadata: {name: r}, handler: runc, overhead: {podFixed: {cpu: 10m}}, scheduling: {nodeSelector: {a: b}, tolerations: [{operator: Exists}]}}`)
	}
	mutateUpdate(t, rclass, validateRuntimeClassUpdate, []mutation[rc]{
		{"handler changes", func(c rc) { c.Handler = "kata" }, bad(`handler: Invalid value: "kata": field is immutable`)},
		{"no handler", func(c rc) { c.Handler = "" }, bad("handler: Required value", "handler: Invalid value")},
		{"overhead", func(c rc) { c.Overhead.PodFixed = list("cpu", "-1", "x", "1") }, bad("overhead.podFixed[cpu]: Invalid value", "overhead.podFixed[x]: Invalid value")},
		{
			"scheduling", func(c rc) {
				c.Scheduling.NodeSelector = map[string]string{"a b": ""}
				c.Scheduling.Tolerations[0].Operator = ""
			},
			bad("scheduling.nodeSelector: Invalid value", "scheduling.tolerations[0].operator: Invalid value"),
		},
	})
}

// TestForKnowsItsKinds wires every kind that is served to rules of that kind.
func TestForKnowsItsKinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		group, kinds, verbs string
	}{
		{"", "Pod Node Namespace Service ReplicationController ResourceQuota", "create update status"},
		{"", "Secret ConfigMap ServiceAccount Event Endpoints PodTemplate LimitRange PersistentVolume", "create update"},
		{"", "PersistentVolumeClaim", "create update status"},
		{"", "Binding", "create"},
		{"apps", "Deployment ReplicaSet DaemonSet StatefulSet", "create update status"},
		{"apps", "ControllerRevision", "create update"},
		{"batch", "Job", "create update status"},
		{"batch", "CronJob", "create update"},
		{"rbac.authorization.k8s.io", "Role RoleBinding ClusterRole ClusterRoleBinding", "create update"},
		{"storage.k8s.io", "StorageClass CSINode CSIDriver VolumeAttachment", "create update"},
		{"networking.k8s.io", "NetworkPolicy IngressClass ServiceCIDR IPAddress", "create update"},
		{"networking.k8s.io", "Ingress", "create update status"},
		{"discovery.k8s.io", "EndpointSlice", "create update"},
		{"certificates.k8s.io", "CertificateSigningRequest", "create update status"},
		{"coordination.k8s.io", "Lease", "create update"},
		{"flowcontrol.apiserver.k8s.io", "FlowSchema PriorityLevelConfiguration", "create update status"},
		{"node.k8s.io", "RuntimeClass", "create update"},
		{"policy", "PodDisruptionBudget", "create update status"},
		{"scheduling.k8s.io", "PriorityClass", "create update"},
		{"example.com", "Whatever", ""},
	} {
		for _, kind := range words(c.kinds) {
			r := For(schema.GroupKind{Group: c.group, Kind: kind})
			got := map[string]bool{"create": r.Create != nil, "update": r.Update != nil, "status": r.Status != nil}
			for verb, has := range got {
				if want := slices.Contains(words(c.verbs), verb); has != want {
					t.Errorf("%s/%s has a rule for %s: %t, want %t", c.group, kind, verb, has, want)
				}
			}
		}
	}
}
