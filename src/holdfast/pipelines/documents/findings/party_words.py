"""The words by which organisations, persons and their roles are told."""

from __future__ import annotations

import re

from holdfast.pipelines.documents.findings.word_lists import word_set

# What stands at the end of a company's name, in each spelling.
_FORMS = word_set(
    """
    Inc Inc. Incorporated Corp Corp. Corporation Ltd Ltd. Limited LLC L.L.C. LLP L.L.P. LP PLC plc Plc
    P.L.C. Co Co. GmbH gGmbH mbH AG SE KG KGaA OHG GbR UG e.V. eG eK e.K. Genossenschaft SA S.A. SAS S.A.S.
    SARL S.A.R.L. SASU SNC SCI SL S.L. SLU S.L.U. S.A.U. SpA S.p.A. Srl S.r.l. S.R.L. Sàrl BV B.V. NV N.V.
    VOF Oy Oyj AB ApS A/S ASA Pty Pvt Pte Bhd Sdn Kft Zrt s.r.o. a.s. d.o.o. Ltda Ltda.
    """
)
LEGAL_FORMS = _FORMS | {form.upper() for form in _FORMS if len(form) > 2}
# Followed by more of the same name: "Müller GmbH & Co. KG", "Acme Pty Ltd".
GOES_ON = frozenset({"&", "Co", "Co.", "KG", "KGaA", *LEGAL_FORMS})

# What makes an organisation of the names around it: "Stanford University", "Bank of England".
KINDS_OF_ORGANIZATION = word_set(
    """
    University College Institute School Academy Ministry Department Agency Authority Commission Council
    Committee Court Bank Foundation Association Society Federation Union Trust Fund Hospital Clinic Museum
    Library Parliament Senate Organization Organisation Office Bureau Board Chamber Exchange Group Holdings
    Holding Partners Airlines Universität Hochschule Fachhochschule Institut Ministerium Bundesministerium
    Behörde Stiftung Verband Verein Gesellschaft Bundesamt Landesamt Amtsgericht Landgericht Finanzamt
    Sparkasse Kammer Handelskammer Klinikum Bundesagentur Bundesbank Stadtwerke Krankenkasse Versicherung
    Université École Institut Ministère Agence Banque Fondation Conseil Commission Tribunal Mairie Hôpital
    Universidad Instituto Ministerio Agencia Banco Fundación Asociación Consejo Comisión Ayuntamiento
    Tribunal Università Ministero Banca Fondazione Universiteit Ministerie Stichting Universidade Ministério
    """
)
# Several of the above that are common words as well: with a name before them only where that is no adjective.
GENERIC_BEFORE = word_set(
    """
    The This That Our Your Their Its A An Each Any Every Such No All Other Another Both Said Under From For
    In At By With And Or If When Where As To Of On Is Der Die Das Den Dem Des Ein Eine Dieser Diese Unser
    Unsere Im Am Beim Le La Les L' Un Une Ce Cette Notre Votre Dans El Los Las Una Este Esta Nuestra Su Dear
    While After Before Since Total Board New First Second Third Last Next Between Zwischen Entre However
    Therefore Sehr Herr Frau Invoice Contract Agreement Section Article Clause Rechnung
    """
)
JOINS_NAMES = word_set("of for the and & de des du der die für und la del et y van")
AND = word_set("and & und et y")

TITLES = word_set(
    """
    Mr Mr. Mrs Mrs. Ms Ms. Miss Dr Dr. Prof Prof. Professor Sir Dame Judge Justice Senator Herr Herrn Frau
    Monsieur Madame Mme Mlle Señor Señora Sra Sra. Dott. Sig. Signor Signora Dipl.-Ing. Ing. Mag. Rev. Hon.
    Capt. Mevrouw
    """
)
# Too short to tell a person anywhere: only where a party is named.
TITLES_OF_PARTIES = word_set("D. Dª Dña. Don Doña M. Hr. Fr.")
SUFFIXES_OF_PERSONS = word_set("Jr. Jr Sr. PhD MD II III Esq.")
PARTICLES = word_set("von van de der den del della di da zu la le ter bin al")
# Before two names or more: "chief executive Maria Lindqvist".
OFFICES = word_set(
    """
    executive chairman chairwoman chair CEO CFO COO CTO president president, spokesman spokeswoman secretary
    treasurer Geschäftsführer Geschäftsführerin Vorstandsvorsitzende Vorstandsvorsitzender Direktor Direktorin
    """
)
# A single German word that names an authority: Bundesnetzagentur, Landesverwaltungsamt.
AUTHORITY = re.compile(r"(?:Bundes|Landes)\w{2,30}(?:amt|agentur|ministerium|bank|gericht|anstalt|behörde)")

# The words before a colon that say who somebody is, and what to call them.
ROLES: dict[str, str] = {
    word: role
    for role, words in {
        "seller": "seller|verkäufer|verkäuferin|vendeur|vendedor|venditore",
        "buyer": "buyer|purchaser|käufer|käuferin|acheteur|acquéreur|comprador|acquirente",
        "client": "client|customer|auftraggeber|auftraggeberin|kunde|kundin|cliente|bill to|billed to"
        "|invoice to|sold to|rechnungsempfänger|facturé à|facturar a",
        "recipient": "ship to|deliver to|recipient|empfänger|lieferadresse|destinataire|destinatario",
        "supplier": "supplier|vendor|provider|service provider|contractor|subcontractor"
        "|auftragnehmer|auftragnehmerin|lieferant|dienstleister|fournisseur|prestataire|proveedor"
        "|contratista|issued by",
        "landlord": "landlord|lessor|vermieter|vermieterin|bailleur|arrendador",
        "tenant": "tenant|lessee|mieter|mieterin|locataire|arrendatario",
        "employer": "employer|arbeitgeber|arbeitgeberin|employeur|empleador",
        "employee": "employee|arbeitnehmer|arbeitnehmerin|mitarbeiter|mitarbeiterin|salarié|empleado",
        "lender": "lender|darlehensgeber|prêteur|prestamista",
        "borrower": "borrower|darlehensnehmer|emprunteur|prestatario",
        "licensor": "licensor|lizenzgeber|concédant|licenciante",
        "licensee": "licensee|lizenznehmer|licencié|licenciatario",
        "contact": "contact|contact person|attn|attention|ansprechpartner|ansprechpartnerin"
        "|interlocuteur|contacto",
        "author": "author|authors|prepared by|written by|verfasser|verfasserin|autor|autorin|auteur"
        "|redactado por",
        "signatory": "signed by|unterzeichnet von|signé par|firmado por",
        "insured": "insured|policyholder|versicherungsnehmer|assuré|asegurado",
        "insurer": "insurer|versicherer|assureur|asegurador",
    }.items()
    for word in words.split("|")
}
# What a contract calls by a name of its own, and is no party.
NO_ROLES = word_set(
    "agreement contract parties party services vertrag vereinbarung parteien contrat accord contrato"
)

ROLES_OF_PERSONS = frozenset({"employee", "contact", "author", "signatory", "tenant"})

# Anybody may have an address there: it tells no organisation.
PUBLIC_MAIL = word_set(
    """
    gmail googlemail outlook hotmail live yahoo icloud me aol gmx web t-online freenet proton protonmail
    orange free wanadoo laposte posteo mail msn example
    """
)
